// An image by drag and drop or by the file chooser: made small here, sent, and shown like any
// other result. A model that answers questions about images waits for one. The panel is there only
// where the server offers a model that sees.
(function (attnflow) {
  "use strict";

  const { make, ask, run } = attnflow;
  const LONGEST = 1024; // pixels of a side that is sent: models look at a few hundred
  const LARGEST = 50 * 1024 * 1024; // bytes of a file that is read at all
  const limits = { image_bytes: 4 * 1024 * 1024 };
  const parts = {};
  let models = [];
  let waiting = null; // {image, name}: what a question is asked about

  function say(sentence, wrong = false) {
    parts.status.textContent = sentence;
    parts.status.classList.toggle("error", wrong);
  }

  // -- the file -------------------------------------------------------------------------------------

  // As a small JPEG; a format that the browser cannot show is sent as it is, for the server to read.
  async function reduced(file) {
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      if (file.size * 1.4 > limits.image_bytes) throw new Error(`${file.name} cannot be read here and is too large to be sent as it is. Save it as a JPEG.`);
      return asAddress(file);
    }
    const share = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
    const canvas = make("canvas", { width: String(Math.max(1, Math.round(bitmap.width * share))), height: String(Math.max(1, Math.round(bitmap.height * share))) });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "white"; // under what is transparent, as on the command line
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/jpeg", 0.92);
  }

  function asAddress(file) {
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.addEventListener("load", () => resolve(reader.result));
      reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read.`)));
      reader.readAsDataURL(file);
    });
  }

  async function take(file) {
    try {
      if (!file) return;
      if (file.size > LARGEST) throw new Error(`${file.name} has ${Math.round(file.size / 2 ** 20)} MB; up to 50 MB are read.`);
      say(`Reading ${file.name} …`);
      await use(await reduced(file), file.name);
    } catch (error) {
      say(error.message, true);
    }
  }

  // An image is explained at once, or waits for its question.
  async function use(image, name) {
    parts.preview.src = image;
    parts.preview.hidden = false;
    waiting = { image, name };
    say("");
    if (!chosen().answers) return run("image", { model: chosen().name, ...waiting }, name);
    parts.question.focus();
  }

  // Image and question stay, for another run.
  function askAboutIt() {
    const question = parts.question.value.trim();
    const missing = !waiting ? "There is no image: drop one here, or choose a file." : "There is no question: type one first.";
    if (!waiting || !question) return say(missing, true);
    say("");
    run("image-question", { model: chosen().name, ...waiting, question }, question);
  }

  // -- the panel ------------------------------------------------------------------------------------

  const chosen = () => models.find((one) => one.name === parts.model.value);

  function build() {
    parts.model = make("select", { "aria-label": "Model", onchange: fill }, ...models.map((one) => make("option", { value: one.name }, one.name)));
    parts.file = make("input", { type: "file", id: "photo-file", accept: "image/*" });
    parts.status = make("p", { class: "quiet", role: "status", id: "photo-status" });
    parts.preview = make("img", { class: "photo-preview", alt: "The image that was chosen", hidden: "" });
    const choose = make("label", { class: "file" }, "Choose an image ", parts.file);
    parts.sample = make("button", { type: "button", id: "photo-sample", onclick: () => use(chosen().picture, "a drawn scene") }, "Try a drawing");
    const line = make("div", { class: "actions" }, make("strong", {}, "Drop an image here"), choose, parts.sample, parts.model);
    parts.panel = make("section", { class: "photo", id: "photo", "aria-label": "Explain an image" }, line, parts.preview, questions(), parts.status);
    document.getElementById("ask").after(parts.panel);
    parts.file.addEventListener("change", () => take(parts.file.files[0]));
    for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, over);
    document.addEventListener("dragleave", () => parts.panel.classList.remove("over"));
    document.addEventListener("drop", drop);
    const folded = () => (parts.panel.hidden = document.getElementById("ask").hidden);
    new MutationObserver(folded).observe(document.getElementById("ask"), { attributes: true, attributeFilter: ["hidden"] });
    folded();
    fill();
  }

  // What a model that answers is asked: a line, with examples to try.
  function questions() {
    parts.question = make("input", { type: "text", id: "photo-question", "aria-label": "Question about the image", placeholder: "What do you want to know about it?" });
    parts.question.addEventListener("keydown", (event) => event.key === "Enter" && askAboutIt());
    parts.examples = make("div", { class: "examples", role: "group", "aria-label": "Questions to try" });
    const go = make("button", { type: "button", id: "photo-ask", onclick: askAboutIt }, "Ask");
    parts.questions = make("div", { class: "photo-questions" }, make("div", { class: "actions" }, parts.question, go), parts.examples);
    return parts.questions;
  }

  function fill() {
    const { answers, picture, examples } = chosen();
    parts.questions.hidden = !answers;
    parts.sample.hidden = !picture;
    const tryIt = (text) => make("button", { type: "button", onclick: () => (parts.question.value = text) }, text);
    parts.examples.replaceChildren(...(answers ? examples : []).map(tryIt));
  }

  function over(event) {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    parts.panel.hidden = false;
    parts.panel.classList.add("over");
  }

  function drop(event) {
    const file = event.dataTransfer?.files?.[0];
    if (!file) return;
    event.preventDefault();
    parts.panel.classList.remove("over");
    take(file);
  }

  async function begin() {
    const offers = await ask("/api/models").catch(() => ({ models: [] }));
    const last = (one) => Number(Boolean(one.picture)); // what ships stands behind what was named
    models = offers.models.filter((one) => one.sees || one.answers).sort((a, b) => last(a) - last(b));
    Object.assign(limits, offers.limits);
    if (models.length) build();
  }

  begin();
})((globalThis.attnflow ??= {}));
