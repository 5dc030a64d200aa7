// The form of the served page: what is asked, filled from a link and read for a request.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;
  const at = (id) => document.getElementById(id);
  const USUAL = { explain: ["rollout", "raw", "flow"], generate: ["default"], ask: [] };
  const LABELS = { explain: "Text", generate: "Prompt", ask: "Question" };
  const GO = { explain: "Explain", generate: "Continue", ask: "Ask" };
  const NEW_TOKENS = { generate: 12, ask: 40 };

  class Form {
    constructor(offers, { onChange, onExample }) {
      this.offers = offers;
      this.onExample = onExample;
      at("ask").addEventListener("input", onChange);
      for (const radio of document.querySelectorAll("[name=task]")) radio.addEventListener("change", () => this.fill());
      at("model").addEventListener("change", () => this.fillModel());
      at("add-document").addEventListener("click", () => this.addDocument().querySelector("textarea").focus());
      at("files").addEventListener("change", () => this.readFiles());
    }

    get task() {
      return document.querySelector("[name=task]:checked").value;
    }

    set task(name) {
      document.querySelector(`[name=task][value=${name}]`).checked = true;
    }

    get able() {
      return this.offers.models.filter((one) => (this.task === "explain" ? one.explains : one.generates));
    }

    get model() {
      return this.able.find((one) => one.name === at("model").value);
    }

    // Whether some model can do what is chosen.
    fill() {
      const { able, task } = this;
      at("model").replaceChildren(...able.map((one) => make("option", { value: one.name }, one.name)));
      at("go").disabled = able.length === 0;
      at("go").textContent = GO[task];
      at("text-label").textContent = LABELS[task];
      at("documents").hidden = task !== "ask";
      at("confirm-choice").hidden = task !== "ask";
      at("tokens-choice").hidden = task === "explain";
      at("tokens").max = String(this.offers.limits.new_tokens);
      at("tokens").value = String(Math.min(NEW_TOKENS[task] ?? 12, this.offers.limits.new_tokens));
      if (task === "ask" && !at("document-list").children.length) this.addDocument();
      this.fillMethods();
      this.fillModel();
      return able.length > 0;
    }

    fillMethods() {
      const { task } = this;
      at("methods").hidden = task === "ask";
      const boxes = (this.offers.methods[task] ?? []).map((name) => {
        const box = make("input", { type: "checkbox", name: "method", value: name });
        box.checked = USUAL[task].includes(name);
        return make("label", {}, box, this.offers.titles[name] ?? "Default (gradient attention)");
      });
      at("methods").replaceChildren(make("legend", {}, "Methods"), ...boxes);
    }

    fillModel() {
      const { model, task } = this;
      at("about").textContent = model?.about ?? "";
      at("chat-choice").hidden = task !== "generate" || !model?.chats;
      const examples = task === "ask" ? [] : (model?.examples ?? []);
      at("examples").replaceChildren(
        ...examples.map((text) => make("button", { type: "button", onclick: () => this.example(text) }, text)),
      );
      const known = this.offers.models.flatMap((one) => one.examples);
      const unwritten = at("text").value === "" || known.includes(at("text").value);
      if (unwritten) at("text").value = examples[0] ?? "";
    }

    example(text) {
      at("text").value = text;
      this.onExample();
    }

    // -- documents ------------------------------------------------------------------------------

    addDocument(name = "", text = "") {
      const number = at("document-list").children.length + 1;
      const title = make("input", { type: "text", "aria-label": "Name of the document" });
      title.value = name || `document ${number}`;
      const content = make("textarea", { rows: "4", "aria-label": "Text of the document", spellcheck: "false" });
      content.value = text;
      const block = make("div", { class: "document" });
      const remove = make("button", { type: "button", "aria-label": "Remove this document", onclick: () => this.remove(block) }, "✕");
      block.append(make("div", {}, title, remove), content);
      at("document-list").append(block);
      return block;
    }

    remove(block) {
      block.remove();
      at("ask").dispatchEvent(new Event("input"));
    }

    async readFiles() {
      for (const file of at("files").files) {
        const empty = [...at("document-list").children].find((one) => one.querySelector("textarea").value.trim() === "");
        empty?.remove();
        this.addDocument(file.name, await file.text());
      }
      at("files").value = "";
      at("ask").dispatchEvent(new Event("input"));
    }

    documents() {
      return [...at("document-list").children]
        .map((block) => ({ name: block.querySelector("input").value, text: block.querySelector("textarea").value }))
        .filter(({ text }) => text.trim() !== "");
    }

    // -- a request ------------------------------------------------------------------------------

    request() {
      const { task } = this;
      const model = at("model").value;
      const text = at("text").value;
      if (task === "ask") {
        return { model, question: text, documents: this.documents(), tokens: Number(at("tokens").value), confirm: at("confirm").checked };
      }
      const checked = [...document.querySelectorAll("[name=method]:checked")].map((box) => box.value);
      const methods = [...USUAL[task].filter((name) => checked.includes(name)), ...checked]; // the usual one opens
      if (task === "explain") return { model, text, methods };
      const chat = at("chat").checked && !at("chat-choice").hidden;
      return { model, prompt: text, methods, tokens: Number(at("tokens").value), chat };
    }

    // Fill the form with what a stored result was asked.
    restore(request) {
      if (!request || !(request.task in USUAL)) return;
      this.task = request.task;
      at("document-list").replaceChildren();
      for (const { name, text } of request.documents ?? []) this.addDocument(name, text);
      at("text").value = request.text ?? request.prompt ?? request.question ?? "";
      this.fill();
      if (this.able.some((one) => one.name === request.model)) at("model").value = request.model;
      this.fillModel();
      if (request.tokens) at("tokens").value = String(request.tokens);
      at("chat").checked = Boolean(request.chat);
      at("confirm").checked = Boolean(request.confirm);
      for (const box of document.querySelectorAll("[name=method]")) {
        box.checked = request.methods?.length ? request.methods.includes(box.value) : USUAL[this.task].includes(box.value);
      }
    }
  }

  Object.assign(attnflow, { Form });
})((globalThis.attnflow ??= {}));
