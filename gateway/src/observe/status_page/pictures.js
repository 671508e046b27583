// The map and the curves of the last hour, as SVG.

const SVG = "http://www.w3.org/2000/svg";
/** Least and greatest height of the map, and the heights of the curves, in pixels. */
const MAP_HEIGHTS = [260, 400];
/** Height of a map of two regions, which are on one line, in pixels. */
const MAP_LINE_HEIGHT = 120;
const CURVE_HEIGHTS = { throughput: 190, efficiency: 150 };
/** Width below which pictures have fewer texts beside their lines, in pixels. */
const NARROW = 560;
/** Space beside the regions for their names, in pixels. */
const SIDE_WIDE = 130;
const SIDE_NARROW = 60;
/** Width of a picture that is not shown yet, in pixels. */
const WIDTH_DEFAULT = 760;
/** Regions up to which all names are written, and own links up to which all have a label. */
const NAMES_MAX = 24;
const LABELS_MAX = 8;

/** Makes an SVG element; a text is set as text. */
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
/** Gives a drawn element the text that a pointer or a screen reader gets. */
function titled(element, text) {
  element.append(draw("title", {}, text));
  return element;
}
const at = (x, y) => ({ x: x.toFixed(1), y: y.toFixed(1) });

/** Makes a picture as wide as the window allows. Its units are pixels, so that texts keep their size. */
function fitPicture(svg, heightOf) {
  const width = Math.round(svg.clientWidth) || WIDTH_DEFAULT;
  const height = heightOf(width);
  const box = `0 0 ${width} ${height}`;
  if (svg.getAttribute("viewBox") !== box) svg.setAttribute("viewBox", box);
  return { width, height };
}

/** Returns the middle of the map and the place of each region: on an ellipse, the own one on the left. */
function mapLayout(names, own) {
  const [least, most] = MAP_HEIGHTS;
  const heightOf = (width) =>
    names.length <= 2 ? MAP_LINE_HEIGHT : Math.round(Math.min(most, Math.max(least, width / 2)));
  const { width, height } = fitPicture(byId("map"), heightOf);
  const narrow = width < NARROW;
  const [x, y] = [width / 2, height / 2 - 5];
  const across = Math.min(1.2 * most, x - (narrow ? SIDE_NARROW : SIDE_WIDE));
  const up = height / 2 - 45;
  const from = Math.max(0, names.indexOf(own));
  const places = new Map();
  names.forEach((region, index) => {
    const turn = Math.PI + (2 * Math.PI * (index - from)) / names.length;
    places.set(region, [x + across * Math.cos(turn), y + up * Math.sin(turn)]);
  });
  const place = (region) => places.get(region) || [x, y];
  return { x, y, width, narrow, place };
}

/** Draws the map: links of other regions, those of this one with their load, then the regions. */
function showMap(status, loads) {
  const fabric = live.fabric;
  const names = fabric
    ? fabric.regions.map((region) => region.region)
    : [...new Set([status.region, ...status.links.flatMap((link) => link.between)])].sort();
  const layout = mapLayout(names, status.region);
  const line = (between, attributes) => {
    const [from, to] = between.map(layout.place);
    const ends = {
      x1: from[0].toFixed(1),
      y1: from[1].toFixed(1),
      x2: to[0].toFixed(1),
      y2: to[1].toFixed(1),
    };
    return draw("line", { ...ends, ...attributes });
  };
  const far = byId("map-far");
  const signature = JSON.stringify([names, status.region, layout.width]);
  if (far.dataset.state !== signature) {
    far.dataset.state = signature;
    const edges = fabric ? fabric.links : [];
    const others = edges.filter((edge) => !edge.between.includes(status.region));
    far.replaceChildren(...others.map((edge) => line(edge.between, { class: "far" })));
  }
  const near = [];
  // Many lines leave each other room.
  const widest = Math.min(7, 60 / loads.length);
  for (const load of loads) {
    const width = 1.5 + widest * Math.min(1, load.used || 0);
    const lanes = `lanes ${load.up}/${load.lanes}, RTT ${rttRange(load.rtts)}`;
    const carried = `${loadText(load)}, ${lanes}, loss ${percent(load.loss)}`;
    const text = `${load.link.between.join("-")}: ${load.word}, ${carried}`;
    near.push(
      titled(
        line(load.link.between, { class: `link ${load.kind}`, "stroke-width": width.toFixed(1) }),
        text,
      ),
    );
  }
  if (loads.length <= LABELS_MAX) {
    loads.forEach((load, index) => near.push(...linkLabel(load, layout, index)));
  }
  byId("map-near").replaceChildren(...near);
  byId("map-nodes").replaceChildren(
    ...names.flatMap((region) => regionMark(region, status, loads, layout, names.length)),
  );
  const down = loads
    .filter((load) => load.kind === "bad")
    .map((load) => load.link.between.join("-"));
  const links = `${plural(loads.length, "link")} of ${status.region}`;
  const state = down.length ? `down: ${down.join(", ")}` : "none is down";
  const summary = `${plural(names.length, "region")}, ${links}; ${state}.`;
  setText(byId("map-text"), `${summary} The table below has all figures.`);
  setText(byId("n-map"), plural(names.length, "region"));
}

/** Prints load, capacity and their ratio; the capacity alone before the load is known. */
function loadText(load) {
  const capacity = rate(load.link.effective_bits_per_second);
  if (Number.isNaN(load.used)) return capacity;
  return `${rate(Math.max(load.out, load.in))} of ${capacity} (${percent(load.used)})`;
}

function linkLabel(load, layout, index) {
  const [from, to] = load.link.between.map(layout.place);
  const place = at((from[0] + to[0]) / 2, (from[1] + to[1]) / 2 + (index % 2 ? 12 : -8));
  const text = load.kind === "good" ? loadText(load) : load.word;
  return [draw("text", { ...place, class: "halo", "text-anchor": "middle" }, text)];
}

function regionMark(label, status, loads, layout, total) {
  const [x, y] = layout.place(label);
  const own = label === status.region;
  const load = loads.find((one) => one.far === label);
  const bad = load !== undefined && load.kind === "bad";
  const radius = total > NAMES_MAX ? 5 : 9;
  const node = draw("circle", {
    cx: x.toFixed(1),
    cy: y.toFixed(1),
    r: radius,
    class: `node${own ? " own" : bad ? " bad" : ""}`,
  });
  const marks = [
    titled(node, own ? `${label}: this region` : `${label}${load ? `: ${load.word}` : ""}`),
  ];
  if (total <= NAMES_MAX || own || bad) {
    const aside = layout.narrow || Math.abs(x - layout.x) <= 5 ? 0 : x - layout.x;
    const anchor = aside < 0 ? "end" : aside > 0 ? "start" : "middle";
    const shift = 14 * Math.sign(aside);
    const below = aside !== 0 ? 4 : y < layout.y - 5 ? -16 : 26;
    const shown = label.length > 14 ? `${label.slice(0, 13)}…` : label;
    marks.push(
      draw("text", { ...at(x + shift, y + below), class: "halo", "text-anchor": anchor }, shown),
    );
  }
  return marks;
}

/** Draws curves over the last hour. A series has a class and a value for each sample, or NaN. */
function drawCurves(id, samples, series, most, print) {
  const svg = byId(id);
  const { width, height } = fitPicture(svg, () => CURVE_HEIGHTS[id]);
  const box = { left: 78, right: width - 8, top: 10, bottom: height - 26 };
  const end = samples.length ? samples[samples.length - 1].at_seconds : 0;
  const x = (sample) => box.right - ((end - sample.at_seconds) / 3600) * (box.right - box.left);
  const y = (value) => box.bottom - (Math.min(value, most) / most) * (box.bottom - box.top);
  const parts = [0, 0.5, 1].flatMap((part) => [
    draw("line", {
      class: "axis",
      x1: box.left,
      x2: box.right,
      y1: y(part * most),
      y2: y(part * most),
    }),
    draw(
      "text",
      { class: "soft", x: box.left - 8, y: y(part * most) + 4, "text-anchor": "end" },
      print(part * most),
    ),
  ]);
  for (const minutes of width < NARROW ? [60, 30, 0] : [60, 45, 30, 15, 0]) {
    const place = box.right - (minutes / 60) * (box.right - box.left);
    const anchor = minutes === 0 ? "end" : minutes === 60 ? "start" : "middle";
    parts.push(
      draw(
        "text",
        { class: "soft", x: place, y: height - 8, "text-anchor": anchor },
        minutes ? `-${minutes} min` : "now",
      ),
    );
  }
  for (const { kind, value } of series) {
    let path = "";
    let pen = false;
    for (const sample of samples) {
      const height = value(sample);
      if (Number.isFinite(height))
        path += `${pen ? "L" : "M"}${x(sample).toFixed(1)} ${y(height).toFixed(1)}`;
      // A line needs two points: a single sample is a dot by its round cap.
      if (Number.isFinite(height) && !pen) path += "h.1";
      pen = Number.isFinite(height);
    }
    parts.push(draw("path", { class: kind, d: path, "stroke-linecap": "round" }));
  }
  for (const sample of samples) {
    if (sample.ready && sample.failed === 0) continue;
    const mark = draw("rect", {
      class: "fault",
      x: (x(sample) - 2).toFixed(1),
      y: box.bottom,
      width: 4,
      height: 6,
    });
    parts.push(titled(mark, sample.ready ? `${sample.failed} collectives failed` : "not ready"));
  }
  svg.querySelector("g").replaceChildren(...parts);
}

/** Returns 1, 2 or 5 times a power of ten that is at least `value`. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((bound) => bound >= value);
}

function showCurves(history) {
  const samples = history.samples;
  const sent = (sample) => (8 * sample.sent_bytes) / sample.seconds;
  const received = (sample) => (8 * sample.received_bytes) / sample.seconds;
  const efficiency = (sample) =>
    sample.collective_seconds > 0 ? sample.bound_seconds / sample.collective_seconds : NaN;
  const most = samples.reduce(
    (found, sample) => Math.max(found, sent(sample), received(sample)),
    1000,
  );
  drawCurves(
    "throughput",
    samples,
    [
      { kind: "one", value: sent },
      { kind: "two", value: received },
    ],
    roundUp(most),
    rate,
  );
  drawCurves("efficiency", samples, [{ kind: "one", value: efficiency }], 1, percent);
  const last = samples[samples.length - 1];
  const now = last
    ? `now ${rate(sent(last))} sent, ${rate(received(last))} received`
    : "no sample yet";
  setText(byId("throughput-title"), `Throughput over the last hour: ${now}, at most ${rate(most)}`);
  const taken = samples.reduce((sum, sample) => sum + sample.collective_seconds, 0);
  const bound = samples.reduce((sum, sample) => sum + sample.bound_seconds, 0);
  setText(byId("efficiency-title"), `Efficiency over the last hour: ${percent(bound / taken)}`);
}
