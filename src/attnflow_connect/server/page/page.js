// The served page: asks, waits in sight, shows. The result itself is the viewer's. An address holds
// the result and the view of it; what is shown always belongs to what the form says, or says so.
(function (attnflow) {
  "use strict";

  const { make, Form } = attnflow;
  const POLL = 250; // ms
  const PATIENCE = 300; // ms in which a server whose models are loaded has answered
  const EXAMPLE = document.body.dataset.example; // the result that the page opens on, if there is one
  const at = (id) => document.getElementById(id);
  let form = null;
  let viewer = null;
  let shown = null; // {id, request}: the result in sight, and what was asked for it
  let job = null; // the one in sight
  let turn = 0; // of runs; an older one that answers late is not shown

  async function ask(address, options = {}) {
    let answer;
    try {
      answer = await fetch(address, options);
    } catch {
      throw new Error("The server does not answer. Is it still running?");
    }
    const body = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
    if (!answer.ok) throw Object.assign(new Error(body.error ?? `The server answered ${answer.status}.`), { status: answer.status });
    return body;
  }

  // -- asking and waiting ---------------------------------------------------------------------------

  function problem() {
    if (form.task === "chat") return form.messages().length ? null : "There is no message: type one first.";
    if (at("text").value.trim() === "") {
      return form.task === "ask" ? "There is no question: type one first." : "There is nothing to explain: type a text first.";
    }
    return form.task === "ask" && form.documents().length === 0 ? "There is no document: add one first." : null;
  }

  async function submit() {
    complain(problem());
    if (problem()) return;
    const body = form.request();
    await run(form.task, body, body.question ?? body.prompt ?? body.text ?? body.messages.at(-1).content);
  }

  // Have the server work: what was asked stands on top, then how far it is and what is written.
  async function run(task, body, title) {
    const earlier = viewer?.inShort() ?? null;
    const own = ++turn;
    clear(); // a result never stands under a request it does not belong to
    complain(null);
    at("ask").hidden = true;
    at("asked").textContent = title;
    waiting({ total: 0, stage: "sending", text: "" });
    try {
      const headers = { "content-type": "application/json" };
      const started = await ask(`/api/${task}`, { method: "POST", headers, body: JSON.stringify(body) });
      if (own !== turn) return;
      job = started.id;
      await follow(started, earlier);
    } catch (error) {
      if (own === turn) giveUp(error.message);
    }
  }

  async function follow(started, earlier) {
    let found = started;
    while (job === started.id && (found.state === "waiting" || found.state === "running")) {
      waiting(found);
      await new Promise((resolve) => setTimeout(resolve, POLL));
      found = await ask(`/api/jobs/${started.id}`);
    }
    if (job !== started.id) return;
    if (found.state === "failed") giveUp(found.error);
    else if (found.state === "cancelled") giveUp("Cancelled.");
    else await open(found.result, "", earlier);
  }

  function giveUp(sentence) {
    waiting(null);
    complain(sentence);
    at("ask").hidden = false;
  }

  function waiting(found) {
    at("progress").hidden = found === null;
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
    at("written").textContent = found.text;
  }

  function complain(sentence) {
    at("error").hidden = sentence === null;
    at("error").textContent = sentence ?? "";
  }

  // -- showing --------------------------------------------------------------------------------------

  function clear() {
    viewer = shown = null;
    at("result").replaceChildren();
    at("changed").hidden = true;
    at("again").hidden = true;
    at("keep").hidden = true;
    mark();
    history.replaceState(null, "", "/");
  }

  async function show(id, state = "") {
    const record = await ask(`/api/results/${id}.json`);
    waiting(null);
    viewer = attnflow.show(at("result"), record, { state, onState: (view) => address(id, view) });
    return record;
  }

  async function open(id, state = "", earlier = null) {
    settle(id, await show(id, state), earlier);
  }

  // What is in sight can be asked again, edited and taken away.
  function settle(id, record, earlier = null) {
    form.restore(record.request);
    shown = { id, request: JSON.stringify(form.request()) };
    address(id, viewer.link());
    at("again").hidden = false;
    at("own").hidden = id !== EXAMPLE;
    at("reply").hidden = form.task !== "chat";
    at("as-html").href = `/api/results/${id}.html`;
    at("as-json").href = `/api/results/${id}.json`;
    at("as-png").onclick = () => {
      const { result, rows } = viewer.state;
      at("as-png").href = `/api/results/${id}.png?result=${result}&target=${rows[0]}`;
    };
    at("as-png").href = `/api/results/${id}.png`;
    compare(earlier, record.lines ?? []);
    fold(true);
  }

  function address(id, view) {
    history.replaceState(null, "", `/#${id}?${view}`);
    at("link").href = `/#${id}?${view}`;
  }

  // The form folds away when there is a result; `Edit and run again` brings it back.
  function fold(away) {
    at("ask").hidden = away;
    at("edit").hidden = !away;
    at("keep").hidden = away || viewer === null;
    mark();
    if (!away) (form.task === "chat" ? document.querySelector("#message-list .message:last-child textarea") : at("text"))?.focus();
  }

  // A result of another text than the form's is said to be one, and steps back.
  function mark() {
    const stale = shown !== null && JSON.stringify(form.request()) !== shown.request;
    document.body.classList.toggle("stale", stale);
    at("stale").hidden = !stale;
  }

  // What changed since the run before: both answers side by side, and sources that rose or fell.
  function compare(earlier, lines) {
    const parts = lines.filter((line) => line.startsWith("without ")).map((line) => make("p", {}, line));
    if (earlier !== null) parts.push(...changes(earlier, viewer.inShort()));
    at("changed").hidden = parts.length === 0;
    at("changed").replaceChildren(...parts);
  }

  function changes(before, now) {
    const column = (name, one) => make("div", {}, make("h3", {}, name), make("p", {}, make("b", {}, one.answer || one.title)), make("p", {}, one.lead));
    const verdict = before.answer === now.answer ? "The answer is the same." : "The answer changed.";
    const known = new Map(before.sources.map(({ name, text }) => [name, text]));
    const moved = now.sources.filter(({ name, text }) => known.get(name) !== text).slice(0, 5);
    const list = moved.map(({ name, text }) => make("li", {}, `“${name}”: ${known.get(name) ?? "not among the strongest"} → ${text}`));
    return [make("p", {}, verdict), make("div", { class: "two" }, column("Before", before), column("Now", now)), make("ul", {}, ...list)];
  }

  // -- beginning ------------------------------------------------------------------------------------

  function parts() {
    const [id, state] = location.hash.slice(1).split("?");
    return { id, state: state ?? "" };
  }

  // What is offered, once the models are there; the server says so if that takes long.
  async function loaded() {
    const notice = setTimeout(() => (at("loading").hidden = false), PATIENCE);
    try {
      for (;;) {
        try {
          return await ask("/api/models");
        } catch (error) {
          if (error.status !== 503) throw error;
          await new Promise((resolve) => setTimeout(resolve, 1000));
        }
      }
    } finally {
      clearTimeout(notice);
      at("loading").hidden = true;
    }
  }

  async function begin() {
    const { id, state } = parts();
    try {
      // The saved answer needs no model: it is in sight while they are loaded.
      const early = EXAMPLE && ["", EXAMPLE].includes(id) ? show(EXAMPLE, state) : null;
      const [offers, record] = await Promise.all([loaded(), early]);
      form = new Form(offers, { onChange: mark, onExample: submit });
      if (offers.models.some((one) => one.generates)) form.task = "ask";
      const chats = offers.models.some((one) => one.chats);
      document.querySelector("[name=task][value=chat]").closest("label").hidden = !chats;
      if (!form.fill()) giveUp("No model here can do this. Start the server with --model NAME, or install attnflow[demo].");
      listen();
      if (record) settle(EXAMPLE, record);
      else if (/^[\w-]{6,40}$/.test(id)) await open(id, state);
      else if (id !== "new") await openExample(offers);
      else at("ask").hidden = false;
    } catch (error) {
      (form ? giveUp : complain)(error.message);
    }
  }

  // Where no answer was saved with the package, a model that is at hand explains its example.
  async function openExample(offers) {
    const model = offers.models.find((one) => one.explains && one.examples.length);
    if (!model) return giveUp(null); // the form is there
    return run("explain", { model: model.name, text: model.examples[0] }, model.examples[0]);
  }

  function listen() {
    at("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    at("ask").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
    });
    at("edit").addEventListener("click", () => fold(false));
    at("reply").addEventListener("click", () => {
      const block = form.reply(viewer.inShort().answer);
      fold(false);
      block.querySelector("textarea").focus();
    });
    at("keep").addEventListener("click", () => open(shown.id, viewer.link()).catch((error) => complain(error.message)));
    at("cancel").addEventListener("click", () => {
      if (job !== null) ask(`/api/jobs/${job}`, { method: "DELETE" }).catch((error) => complain(error.message));
    });
    window.addEventListener("hashchange", () => location.reload());
  }

  Object.assign(attnflow, { ask, run });
  begin();
})((globalThis.attnflow ??= {}));
