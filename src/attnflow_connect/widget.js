// The viewer in a frame of its own, which tells the number of the statement that is clicked.
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.title = "attnflow";
    const load = () => {
      frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0`;
      frame.srcdoc = model.get("html");
    };
    const hear = ({ source, data }) => {
      if (source !== frame.contentWindow || !Number.isInteger(data?.attnflow)) return;
      model.set("number", data.attnflow);
      model.save_changes();
    };
    globalThis.addEventListener("message", hear);
    model.on("change:html", load);
    load();
    el.append(frame);
    return () => {
      globalThis.removeEventListener("message", hear);
      model.off("change:html", load);
    };
  },
};
