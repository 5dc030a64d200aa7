// A page that holds its own data shows it; a damaged one says so.
(function (attnflow) {
  "use strict";

  const root = document.getElementById("attnflow-view");
  try {
    const record = JSON.parse(document.getElementById("attnflow-data").textContent);
    const onState = (state) => {
      try {
        history.replaceState(null, "", `#${state}`); // a link to what is shown
      } catch {
        return; // a frame without an address of its own
      }
    };
    attnflow.show(root, record, { state: location.hash.slice(1), onState });
  } catch (error) {
    root.textContent = `This view cannot be shown: ${error.message}`;
  }
})((globalThis.attnflow ??= {}));
