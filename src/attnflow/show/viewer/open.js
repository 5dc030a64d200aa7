// A page that holds its own data shows it; a damaged one says so.
(function (attnflow) {
  "use strict";

  const root = document.getElementById("attnflow-view");
  try {
    attnflow.show(root, JSON.parse(document.getElementById("attnflow-data").textContent));
  } catch (error) {
    root.textContent = `This view cannot be shown: ${error.message}`;
  }
})((globalThis.attnflow ??= {}));
