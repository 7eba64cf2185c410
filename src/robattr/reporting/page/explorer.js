"use strict";
// The explorer: draws the packed galleries (layout: explorer.py). All text goes through textContent.
(() => {
  const $ = (id) => document.getElementById(id);
  const make = (tag, css, text) => {
    const node = document.createElement(tag);
    if (css) node.className = css;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const percent = (v) => (v === null || v === undefined ? "–" : `${Math.round(100 * v)}%`);
  const decimal = (v) => (v === null || v === undefined ? "–" : v.toFixed(2));

  // Theme: follows the system until the reader chooses.
  const theme = $("theme");
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
  let dark = systemDark.matches;
  const paintTheme = (chosen) => {
    if (chosen) document.documentElement.style.colorScheme = dark ? "dark" : "light";
    theme.textContent = dark ? "Light" : "Dark";
    theme.setAttribute("aria-label", dark ? "Use light colours" : "Use dark colours");
  };
  paintTheme(false);
  theme.addEventListener("click", () => { dark = !dark; paintTheme(true); });

  // Tell that a table scrolls where it does; without this script every table says so.
  const tellScrolling = () => {
    for (const box of document.querySelectorAll(".scroll")) box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
  };
  tellScrolling();
  window.addEventListener("resize", tellScrolling);

  const data = JSON.parse($("data").textContent);
  if (!data.groups.length) return;
  $("explorer").hidden = false;

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const ramp = bytes(data.colours);
  const unpacked = new Map();
  const inflate = (text) => {
    if (!unpacked.has(text)) {
      const stream = new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
      unpacked.set(text, new Response(stream).arrayBuffer().then((b) => new Uint8Array(b)));
    }
    return unpacked.get(text);
  };

  const state = { group: data.groups[0], example: null, step: 0, top: false, amplify: 1, cards: [], drawing: 0 };
  const className = (label) => state.group.classes[label] ?? String(label);
  const longest = () => Math.max(...state.group.iterations.map((t) => t.length));
  // A thinned gallery has one iterate of each example, the reported one; its iteration differs between examples.
  const reached = (t, step) => (t.length === 1 ? (step ? "after" : "before") : String(step ? t[step - 1] : 0));
  // A card for each model; a single model has a card for each of several examples.
  const ABREAST = 4;
  const alone = () => state.group.models.length === 1;

  // ---- drawing ----
  const paint = (canvas, pixel) => {
    const [height, width] = state.group.shape;
    canvas.width = width; canvas.height = height;
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      const [r, g, b] = pixel(i);
      image.data.set([r, g, b, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
  };
  const colour = (i, channels, value) => (channels === 1
    ? [value(i), value(i), value(i)]
    : [value(3 * i), value(3 * i + 1), value(3 * i + 2)]);
  const scale = (v) => [ramp[3 * v], ramp[3 * v + 1], ramp[3 * v + 2]];
  const bit = (array, i) => (array[i >> 3] >> (7 - (i & 7))) & 1;

  // The parts of a model's blob at a step (0 = before the attack).
  const parts = (blob, steps, step) => {
    const [height, width, channels] = state.group.shape;
    const size = height * width, bits = Math.ceil(size / 8);
    const maps = steps * size * channels, masks = maps + (steps + 1) * size;
    const cut = (start, length) => blob.subarray(start, start + length);
    return {
      change: step ? cut((step - 1) * size * channels, size * channels) : null,
      before: cut(maps, size),
      after: cut(maps + step * size, size),
      topBefore: cut(masks, bits),
      topAfter: cut(masks + step * bits, bits),
    };
  };
  // A signed value in ±128 on grey: orange where the pixel grew brighter, blue where darker.
  const signed = (v) => {
    const t = Math.min(1, Math.abs(v) / 128), end = v > 0 ? [238, 164, 92] : [84, 142, 214];
    return end.map((c) => 112 + t * (c - 112));
  };
  const clamp = (v) => Math.max(0, Math.min(255, v));
  const drawMap = (canvas, map, own, other) => paint(canvas, (i) => {
    if (!state.top) return scale(map[i]);
    if (bit(own, i)) return bit(other, i) ? [47, 208, 189] : [255, 139, 61];
    const grey = map[i] * 0.35;
    return [grey, grey, grey];
  });

  const drawCard = (card, image, blob) => {
    const channels = state.group.shape[2];
    const entry = card.example.models[card.model];
    const iterations = state.group.iterations[card.model];
    const step = Math.min(state.step, iterations.length);
    const p = parts(blob, iterations.length, step);
    const shift = (i) => (p.change ? p.change[i] - 128 : 0);
    paint(card.image, (i) => colour(i, channels, (j) => image[j]));
    paint(card.perturbed, (i) => colour(i, channels, (j) => clamp(image[j] + shift(j))));
    paint(card.change, channels === 1
      ? (i) => signed(state.amplify * shift(i))
      : (i) => colour(i, channels, (j) => clamp(128 + state.amplify * shift(j))));
    drawMap(card.before, p.before, p.topBefore, p.topAfter);
    drawMap(card.after, p.after, p.topAfter, p.topBefore);
    const topk = step ? entry.topk[step - 1] : 1, kendall = step ? entry.kendall[step - 1] : 1;
    const kept = step ? entry.kept[step - 1] : true;
    card.topk.textContent = percent(topk);
    card.kendall.textContent = decimal(kendall);
    card.state.textContent = kept ? "same prediction" : "prediction changed";
    card.state.classList.toggle("lost", !kept);
    card.changeCaption.textContent = `change ×${state.amplify}`;
    const label = className(card.example.label);
    card.image.setAttribute("aria-label", `Image of class ${label}`);
    card.perturbed.setAttribute("aria-label", `The perturbed image, iteration ${reached(iterations, step)}`);
    card.change.setAttribute("aria-label", `The perturbation, amplified ${state.amplify} times`);
    card.before.setAttribute("aria-label", "Attribution map before the attack");
    card.after.setAttribute("aria-label", `Attribution map after the attack, ${percent(topk)} of the top pixels kept`);
    drawSpark(card, entry, iterations, step);
  };

  const drawSpark = (card, entry, iterations, step) => {
    const last = iterations[iterations.length - 1] || 1;
    const x = (t) => 6 + (88 * t) / last, y = (v) => 78 - 70 * Math.max(0, Math.min(1, v));
    const points = [[0, 1], ...iterations.map((t, i) => [t, entry.topk[i]])].filter((p) => p[1] !== null);
    card.path.setAttribute("d", points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)},${y(v).toFixed(1)}`).join(""));
    const now = step ? [iterations[step - 1], entry.topk[step - 1] ?? 0] : [0, 1];
    card.now.setAttribute("cx", x(now[0])); card.now.setAttribute("cy", y(now[1]));
    card.end.textContent = iterations.length === 1 ? "after" : String(last);
  };

  const draw = async () => {
    const ticket = ++state.drawing;
    const example = state.example;
    const cards = state.cards.filter((card) => card.example);
    const images = await Promise.all(cards.map((card) => inflate(card.example.image)));
    const blobs = await Promise.all(cards.map(({ example: e, model }) => (e.models[model] ? inflate(e.models[model].blob) : null)));
    if (ticket !== state.drawing) return; // a newer choice is being drawn
    cards.forEach((card, i) => {
      card.body.hidden = !blobs[i]; card.absent.hidden = Boolean(blobs[i]);
      if (blobs[i]) drawCard(card, images[i], blobs[i]);
    });
    const drawn = { example: example.id, step: state.step, top: state.top, amplify: state.amplify };
    Object.assign(document.body.dataset, drawn); // what is on the screen, for tests
  };

  // ---- the cards ----
  const SVG = "http://www.w3.org/2000/svg";
  const shape = (tag, attributes) => {
    const node = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const panel = (into, caption) => {
    const figure = make("figure"), canvas = make("canvas"), text = make("figcaption", "", caption);
    canvas.setAttribute("role", "img");
    figure.append(canvas, text); into.append(figure);
    return [canvas, text];
  };
  const score = (into, title) => {
    const box = make("div"), value = make("dd", "", "–");
    box.append(make("dt", "", title), value); into.append(box);
    return value;
  };
  const buildCards = () => {
    $("cards").replaceChildren();
    const models = alone() ? Array(Math.min(ABREAST, state.group.examples.length)).fill(0) : state.group.models.keys();
    state.cards = [...models].map((model) => {
      const name = state.group.models[model];
      const root = make("article", `card ${state.group.looks[model]}`), head = make("header");
      const body = make("div"), panels = make("div", "panels"), absent = make("p", "absent", "");
      absent.hidden = true; // until it is known
      absent.textContent = "This model has no record of this example: it misclassified it, or kept another gallery.";
      const card = { root, body, absent, model, example: null, title: make("h3", "", name) };
      card.state = make("p", "state"); card.recorded = make("p", "recorded");
      head.append(card.title, card.state);
      [card.image] = panel(panels, "image before");
      [card.perturbed] = panel(panels, "image after");
      [card.before] = panel(panels, "map before");
      [card.after] = panel(panels, "map after");
      [card.change, card.changeCaption] = panel(panels, "change");
      panels.append(buildSpark(card));
      const scores = make("dl", "scores");
      card.topk = score(scores, data.titles.topk);
      card.kendall = score(scores, data.titles.kendall);
      body.append(panels, scores, card.recorded); root.append(head, body, absent);
      $("cards").append(root);
      return card;
    });
  };
  const buildSpark = (card) => {
    const figure = make("figure"), svg = shape("svg", { viewBox: "0 0 100 100", class: "spark", role: "img" });
    svg.setAttribute("aria-label", "Share of the top pixels kept, against attack iterations");
    card.path = shape("path", {}); card.now = shape("circle", { r: 3.5, class: "now" });
    card.end = shape("text", { x: 94, y: 92, "text-anchor": "end" });
    const zero = shape("text", { x: 6, y: 92 }); zero.textContent = "0";
    svg.append(shape("line", { x1: 6, x2: 94, y1: 78, y2: 78 }), shape("line", { x1: 6, x2: 94, y1: 8, y2: 8 }));
    svg.append(card.path, card.now, card.end, zero);
    figure.append(svg, make("figcaption", "", "top pixels kept, by iteration"));
    return figure;
  };

  // ---- choosing an example ----
  const sortKey = (example, sort) => {
    if (sort === "id") return example.id;
    const model = example.models[Number(sort)];
    return model ? model.recorded.topk ?? 2 : 3;
  };
  const listed = () => {
    const label = $("class").value, sort = $("sort").value;
    return state.group.examples
      .filter((e) => label === "" || e.label === Number(label))
      .sort((a, b) => sortKey(a, sort) - sortKey(b, sort) || a.id - b.id);
  };
  const buildStrip = (start) => {
    const strip = $("strip"), sort = $("sort").value, shown = listed();
    strip.replaceChildren(...shown.map((example) => {
      const button = make("button", "thumb"), canvas = make("canvas");
      button.type = "button"; button.dataset.id = example.id;
      button.setAttribute("role", "option");
      const model = sort === "id" ? null : example.models[Number(sort)];
      const text = model ? percent(model.recorded.topk) : `#${example.id}`;
      button.setAttribute("aria-label", `Example ${example.id}, ${className(example.label)}, ${text}`);
      button.append(canvas, make("span", "", text));
      button.addEventListener("click", () => choose(example, true));
      inflate(example.image).then((image) => paint(canvas, (i) => colour(i, state.group.shape[2], (j) => image[j])));
      return button;
    }));
    // An example that every model has, from `start` on, so that the first look compares them all.
    const first = shown.slice(start).find((e) => e.models.every(Boolean)) ?? shown[start];
    if (shown.length) choose(shown.includes(state.example) ? state.example : first, false);
    const selected = strip.querySelector("[aria-selected=true]");
    if (selected) strip.scrollLeft = selected.offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
  };
  const choose = (example, focus) => {
    state.example = example;
    for (const button of $("strip").children) {
      const selected = button.dataset.id === String(example.id);
      button.setAttribute("aria-selected", String(selected));
      button.tabIndex = selected ? 0 : -1;
      if (selected && focus) { button.focus(); button.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    }
    const shown = listed(), here = shown.indexOf(example), name = (e) => [className(e.label), ` · example ${e.id}`];
    const [first, rest] = alone() ? [state.group.models[0], ", the chosen example and those after it"] : name(example);
    $("example-title").replaceChildren(make("strong", "", first), make("span", "", rest));
    state.cards.forEach((card, i) => {
      card.example = alone() ? shown[here + i] ?? null : example;
      card.root.hidden = !card.example;
      if (card.example && alone()) card.title.textContent = name(card.example).join("");
      const model = card.example?.models[card.model];
      if (!model) return;
      const { topk, kendall, iterate } = model.recorded;
      const counted = `${percent(topk)} and ${decimal(kendall)}`, at = iterate === null ? "" : `, iteration ${iterate}`;
      card.recorded.textContent = state.group.strict
        ? `The table counts each score’s worst over all attacks: ${counted}.`
        : `The table counts ${counted}${at}.`;
    });
    draw();
  };
  $("strip").addEventListener("keydown", (event) => {
    const buttons = [...$("strip").children], here = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined || !buttons[next]) return;
    event.preventDefault();
    buttons[next].click();
  });

  // ---- controls ----
  const setStep = (step) => {
    state.step = step;
    const longestRow = state.group.iterations.find((t) => t.length === longest());
    const iteration = reached(longestRow, step), last = longestRow[longestRow.length - 1];
    $("step").value = step;
    $("step").setAttribute("aria-valuetext", longest() === 1 ? iteration : `iteration ${iteration} of ${last}`);
    $("step-out").textContent = iteration;
    if (state.example) draw();
  };
  $("step").addEventListener("input", () => { stop(); setStep(Number($("step").value)); });
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; $("play").textContent = "Play"; };
  $("play").addEventListener("click", () => {
    if (timer) return stop();
    $("play").textContent = "Pause";
    if (state.step >= longest()) setStep(0);
    timer = setInterval(() => (state.step >= longest() ? stop() : setStep(state.step + 1)), 350);
  });
  $("topk").addEventListener("change", () => {
    state.top = $("topk").checked; $("topk-key").hidden = !state.top;
    draw();
  });
  $("amplify").addEventListener("change", () => { state.amplify = Number($("amplify").value); draw(); });
  $("class").addEventListener("change", () => buildStrip(0));
  $("sort").addEventListener("change", () => buildStrip(0));

  const option = (value, text) => { const o = make("option", "", text); o.value = value; return o; };
  const open = (group) => {
    stop();
    state.group = group; state.example = null;
    const labels = [...new Set(group.examples.map((e) => e.label))].sort((a, b) => a - b);
    $("class").replaceChildren(option("", "all"), ...labels.map((l) => option(l, className(l))));
    $("sort").replaceChildren(
      ...group.models.map((name, i) => option(i, `${name}: most moved first`)), option("id", "by number"));
    $("topk-label").textContent = `Top-${group.k} pixels`;
    $("change-key").hidden = group.shape[2] !== 1;
    $("step").max = longest();
    state.amplify = group.amplify; $("amplify").value = String(group.amplify);
    buildCards(); setStep(longest());
    // Several models are compared on a typical example; a single model shows its worst.
    buildStrip(alone() ? 0 : Math.floor(group.examples.length / 2));
  };
  const legend = $("ramp").getContext("2d"), bar = legend.createImageData(256, 1);
  for (let v = 0; v < 256; v++) bar.data.set([...scale(v), 255], 4 * v);
  legend.putImageData(bar, 0, 0);
  if (data.groups.length > 1) {
    $("group-field").hidden = false;
    $("group").replaceChildren(...data.groups.map((g, i) => option(i, g.title)));
    $("group").addEventListener("change", () => open(data.groups[Number($("group").value)]));
  }
  if (typeof DecompressionStream === "undefined") {
    $("example-title").textContent = "This browser cannot unpack the images: please use a newer one.";
    return;
  }
  open(data.groups[0]);
})();
