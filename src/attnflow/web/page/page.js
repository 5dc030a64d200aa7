// The served page: asks, waits in sight, shows. The result itself is the viewer's.
(function (attnflow) {
  "use strict";

  const { make } = attnflow;
  const POLL = 250; // ms
  const at = (id) => document.getElementById(id);
  const USUAL = { explain: ["rollout", "raw", "flow"], generate: ["default"] };
  let offers = null;
  let job = null; // the one in sight; an older one that answers late is not shown

  async function ask(address, options = {}) {
    let answer;
    try {
      answer = await fetch(address, options);
    } catch {
      throw new Error("The server does not answer. Is it still running?");
    }
    const body = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
    if (!answer.ok) throw new Error(body.error ?? `The server answered ${answer.status}.`);
    return body;
  }

  const task = () => document.querySelector("[name=task]:checked").value;
  const able = () => offers.models.filter((one) => (task() === "explain" ? one.explains : one.generates));
  const chosen = () => able().find((one) => one.name === at("model").value);

  // -- the form -----------------------------------------------------------------------------------

  function fillForm() {
    const models = able();
    at("model").replaceChildren(...models.map((one) => make("option", { value: one.name }, one.name)));
    at("go").disabled = models.length === 0;
    at("go").textContent = task() === "explain" ? "Explain" : "Generate";
    at("tokens-choice").hidden = task() === "explain";
    at("tokens").max = String(offers.limits.new_tokens);
    fillMethods();
    fillModel();
    if (models.length === 0) {
      complain("No model here can do this. Start the server with --model NAME, or install attnflow[demo].");
    }
  }

  function fillMethods() {
    const boxes = offers.methods[task()].map((name) => {
      const box = make("input", { type: "checkbox", name: "method", value: name });
      box.checked = USUAL[task()].includes(name);
      return make("label", {}, box, name);
    });
    at("methods").replaceChildren(make("legend", {}, "Methods"), ...boxes);
  }

  function fillModel() {
    const model = chosen();
    at("about").textContent = model?.about ?? "";
    const examples = model?.examples ?? [];
    at("examples").replaceChildren(
      ...examples.map((text) => {
        const button = make("button", { type: "button" }, text);
        button.addEventListener("click", () => {
          at("text").value = text;
          submit();
        });
        return button;
      }),
    );
    const known = offers.models.flatMap((one) => one.examples);
    if (examples.length && (at("text").value === "" || known.includes(at("text").value))) at("text").value = examples[0];
  }

  // -- asking and waiting ---------------------------------------------------------------------------

  async function submit() {
    complain(null);
    if (at("text").value.trim() === "") return complain("There is nothing to explain: type a text first.");
    const checked = [...document.querySelectorAll("[name=method]:checked")].map((box) => box.value);
    const methods = [...USUAL[task()].filter((name) => checked.includes(name)), ...checked]; // the usual one opens
    const model = at("model").value;
    const text = at("text").value;
    const body =
      task() === "explain"
        ? { model, text, methods }
        : { model, prompt: text, methods, tokens: Number(at("tokens").value) };
    try {
      const headers = { "content-type": "application/json" };
      const started = await ask(`/api/${task()}`, { method: "POST", headers, body: JSON.stringify(body) });
      job = started.id;
      await follow(started, task() === "generate" ? text : "");
    } catch (error) {
      complain(error.message);
      waiting(null);
    }
  }

  async function follow(started, prompt) {
    let found = started;
    while (job === started.id && (found.state === "waiting" || found.state === "running")) {
      waiting(found, prompt);
      await new Promise((resolve) => setTimeout(resolve, POLL));
      found = await ask(`/api/jobs/${started.id}`);
    }
    if (job !== started.id) return;
    waiting(null);
    if (found.state === "failed") complain(found.error);
    else if (found.state === "cancelled") complain("Cancelled.");
    else await open(found.result);
  }

  function waiting(found, prompt = "") {
    at("progress").hidden = found === null;
    at("cancel").hidden = found === null;
    at("go").disabled = found !== null;
    if (found === null) return;
    const counted = found.total > 1;
    if (counted) {
      at("bar").max = found.total;
      at("bar").value = found.done;
    } else {
      at("bar").removeAttribute("value");
    }
    const queue = found.ahead === 1 ? "1 request comes first" : `${found.ahead} requests come first`;
    const stage = found.state === "waiting" && found.ahead > 0 ? queue : found.stage;
    at("stage").textContent = counted ? `${stage}: ${found.done} of ${found.total}` : `${stage} …`;
    at("written").replaceChildren(prompt && found.text ? prompt : "", make("b", {}, found.text));
  }

  function complain(sentence) {
    at("error").hidden = sentence === null;
    at("error").textContent = sentence ?? "";
  }

  // -- showing --------------------------------------------------------------------------------------

  async function open(id) {
    const viewer = attnflow.show(at("result"), await ask(`/api/results/${id}.json`));
    history.replaceState(null, "", `#${id}`);
    at("downloads").hidden = false;
    at("as-html").href = `/api/results/${id}.html`;
    at("as-json").href = `/api/results/${id}.json`;
    at("as-png").href = `/api/results/${id}.png`;
    at("as-png").onclick = () => {
      const { result, target } = viewer.state;
      at("as-png").href = `/api/results/${id}.png?result=${result}&target=${target}`;
    };
    at("link").href = `/#${id}`;
    return viewer;
  }

  async function begin() {
    try {
      offers = await ask("/api/models");
      fillForm();
      const id = location.hash.slice(1);
      if (/^[\w-]{6,40}$/.test(id)) await open(id);
    } catch (error) {
      complain(error.message);
    }
  }

  for (const radio of document.querySelectorAll("[name=task]")) {
    radio.addEventListener("change", () => {
      complain(null);
      fillForm();
    });
  }
  at("model").addEventListener("change", fillModel);
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  at("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  at("cancel").addEventListener("click", () => {
    if (job !== null) ask(`/api/jobs/${job}`, { method: "DELETE" }).catch((error) => complain(error.message));
  });
  window.addEventListener("hashchange", () => location.reload());
  begin();
})((globalThis.attnflow ??= {}));
