// A page that holds its own data shows it; a damaged one says so.
(function (attnflow) {
  "use strict";

  const root = document.getElementById("attnflow-view");
  try {
    const record = JSON.parse(document.getElementById("attnflow-data").textContent);
    let viewer = null;
    const onState = (state) => {
      // A page around this one may listen: a notebook's widget, for the statement that is clicked.
      if (parent !== globalThis && viewer) parent.postMessage({ attnflow: viewer.statementInSight(viewer.state.rows) }, "*");
      try {
        history.replaceState(null, "", `#${state}`); // a link to what is shown
      } catch {
        return; // a frame without an address of its own
      }
    };
    viewer = attnflow.show(root, record, { state: location.hash.slice(1), onState });
  } catch (error) {
    root.textContent = `This view cannot be shown: ${error.message}`;
  }
})((globalThis.attnflow ??= {}));
