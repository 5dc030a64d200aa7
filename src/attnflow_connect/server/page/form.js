// The form of the served page: what is asked, filled from a link and read for a request.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;
  const at = (id) => document.getElementById(id);
  const LABELS = { explain: "Text", generate: "Prompt", ask: "Question" };
  const GO = { explain: "Explain", generate: "Continue", chat: "Send", ask: "Ask" };
  const ABILITY = { explain: "explains", generate: "generates", chat: "chats", ask: "generates" };
  const ROLES = ["system", "user", "assistant"];

  class Form {
    constructor(offers, { onChange, onExample }) {
      this.offers = offers;
      this.onExample = onExample;
      at("ask").addEventListener("input", onChange);
      for (const radio of document.querySelectorAll("[name=task]")) radio.addEventListener("change", () => this.fill());
      at("model").addEventListener("change", () => this.fillModel());
      at("example-documents").addEventListener("click", () => this.takeExample());
      at("add-document").addEventListener("click", () => this.addDocument().querySelector("textarea").focus());
      at("files").addEventListener("change", () => this.readFiles());
      at("add-message").addEventListener("click", () => this.addMessage().querySelector("textarea").focus());
      at("methods").addEventListener("input", () => this.markAlone());
    }

    get task() {
      return document.querySelector("[name=task]:checked").value;
    }

    set task(name) {
      document.querySelector(`[name=task][value=${name}]`).checked = true;
    }

    get able() {
      return this.offers.models.filter((one) => one[ABILITY[this.task]]);
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
      at("text-label").textContent = LABELS[task] ?? "";
      for (const block of document.querySelectorAll("[data-for]")) block.hidden = !block.dataset.for.split(" ").includes(task);
      at("tokens").max = String(this.offers.limits.new_tokens);
      at("tokens").value = String(Math.min(this.offers.new_tokens[task] ?? 1, this.offers.limits.new_tokens));
      if (task === "ask" && !at("document-list").children.length) this.addDocument();
      if (task === "chat" && !at("message-list").children.length) this.addMessage("user");
      this.fillMethods();
      this.fillModel();
      return able.length > 0;
    }

    get usual() {
      return this.offers.usual[this.task];
    }

    // The methods that a text is explained by stand in sight, all others are folded away.
    fillMethods() {
      const boxes = new Map(this.offers.methods.map((name) => [name, this.methodBox(name)]));
      const inSight = [...this.offers.usual.explain, "careful"];
      const others = this.offers.methods.filter((name) => !inSight.includes(name));
      const more = make("details", { class: "more" }, make("summary", {}, "More methods"), ...others.map((name) => boxes.get(name)));
      at("methods").replaceChildren(make("legend", {}, "Methods"), ...inSight.map((name) => boxes.get(name)), more);
    }

    methodBox(name) {
      const box = make("input", { type: "checkbox", name: "method", value: name });
      box.checked = this.usual.includes(name);
      return make("label", {}, box, this.offers.titles[name]);
    }

    // The careful method is for language models. It explains words: it stands alone, and the others wait.
    markAlone() {
      const careful = document.querySelector("[name=method][value=careful]");
      careful.disabled = !this.model?.generates;
      careful.parentElement.hidden = careful.disabled;
      const alone = careful.checked && !careful.disabled;
      for (const box of document.querySelectorAll("[name=method]:not([value=careful])")) box.disabled = alone;
    }

    fillModel() {
      const { model, task } = this;
      at("about").textContent = model?.about ?? "";
      at("chat-choice").hidden = !["generate", "ask"].includes(task) || !model?.chats;
      at("chat").checked = task === "ask";
      this.markAlone();
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

    // The documents of the example; and its question, where none was typed.
    takeExample() {
      const { question, documents } = this.offers.example;
      this.fillDocuments(documents);
      at("text").value ||= question;
      at("ask").dispatchEvent(new Event("input"));
      at("text").focus();
    }

    fillDocuments(documents) {
      at("document-list").replaceChildren();
      for (const { name, text } of documents) this.addDocument(name, text);
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

    // -- messages -------------------------------------------------------------------------------

    // A turn of a conversation; roles take turns by themselves.
    addMessage(role = null, content = "") {
      const last = at("message-list").lastElementChild?.querySelector("select").value;
      const select = make("select", { "aria-label": "Role" }, ...ROLES.map((name) => make("option", { value: name }, name)));
      select.value = role ?? (last === "user" ? "assistant" : "user");
      const text = make("textarea", { rows: "2", "aria-label": "Text of the message", spellcheck: "false" });
      text.value = content;
      const block = make("div", { class: "message" });
      const remove = make("button", { type: "button", "aria-label": "Remove this message", onclick: () => this.remove(block) }, "✕");
      block.append(make("div", {}, select, remove), text);
      at("message-list").append(block);
      at("ask").dispatchEvent(new Event("input"));
      return block;
    }

    messages() {
      return [...at("message-list").children]
        .map((block) => ({ role: block.querySelector("select").value, content: block.querySelector("textarea").value }))
        .filter(({ content }) => content.trim() !== "");
    }

    // The conversation goes on: the answer becomes a message, and an empty one waits below it.
    reply(answer) {
      this.addMessage("assistant", answer);
      return this.addMessage("user");
    }

    // -- a request ------------------------------------------------------------------------------

    request() {
      const { task } = this;
      const shared = { model: at("model").value, methods: this.chosenMethods() };
      const text = at("text").value;
      const tokens = Number(at("tokens").value);
      const chat = at("chat").checked && !at("chat-choice").hidden;
      if (task === "explain") return { ...shared, text };
      if (task === "chat") return { ...shared, messages: this.messages(), tokens };
      if (task === "generate") return { ...shared, prompt: text, tokens, chat };
      return { ...shared, question: text, documents: this.documents(), tokens, chat, confirm: at("confirm").checked };
    }

    chosenMethods() {
      const checked = [...document.querySelectorAll("[name=method]:checked:enabled")].map((box) => box.value);
      const usual = this.usual.filter((name) => checked.includes(name)); // the usual one opens
      return [...new Set([...usual, ...checked])];
    }

    // Fill the form with what a stored result was asked.
    restore(request) {
      if (!request || !(request.task in ABILITY)) return;
      this.task = request.task;
      this.fillDocuments(request.documents ?? []);
      at("message-list").replaceChildren();
      for (const { role, content } of request.messages ?? []) this.addMessage(role, content);
      at("text").value = request.text ?? request.prompt ?? request.question ?? "";
      this.fill();
      if (this.able.some((one) => one.name === request.model)) at("model").value = request.model;
      this.fillModel();
      if (request.tokens) at("tokens").value = String(request.tokens);
      at("chat").checked = request.chat ?? this.task === "ask";
      at("confirm").checked = Boolean(request.confirm);
      for (const box of document.querySelectorAll("[name=method]")) {
        box.checked = request.methods?.length ? request.methods.includes(box.value) : this.usual.includes(box.value);
        const more = box.closest(".more");
        if (more && box.checked) more.open = true;
      }
      this.markAlone();
    }
  }

  Object.assign(attnflow, { Form });
})((globalThis.attnflow ??= {}));
