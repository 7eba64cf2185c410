// Browsers refuse Web Workers to pages that are opened from a folder. The site's search runs in one: here, in a hidden
// frame instead. The theme looks for the name IFrameWorker, and for the worker's script element inside the frame.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      this.ready = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow, page = frame.contentDocument;
          const load = (src) => new Promise((done, failed) => {
            const script = page.createElement("script");
            script.src = src;
            script.onload = done;
            script.onerror = failed;
            page.head.append(script);
          });
          inside.postMessage = (data) => {
            const event = new MessageEvent("message", { data });
            this.dispatchEvent(event);
            if (this.onmessage) this.onmessage(event);
          };
          inside.importScripts = (...all) => all.reduce((last, src) => last.then(() => load(src)), Promise.resolve());
          load(new URL(url, location.href).href).then(() => resolve(inside));
        }, { once: true });
      });
      frame.srcdoc = "<!doctype html><title>search</title>";
      document.body.append(frame);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
