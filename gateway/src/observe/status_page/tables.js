// Tables and texts. Every text is set as text, whatever it holds.

const byId = (id) => document.getElementById(id);
/** Rows that each table may show now. */
const limits = new Map();
/** Sets a text where it has changed, so that a selection in it stays. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function setClass(element, name) {
  if (element.getAttribute("class") !== name) element.setAttribute("class", name);
}
/** A cell with a kind that colours it. The text says the same as the colour. */
const cell = (text, kind) => ({ text, kind });
const name = (text) => cell(text, "name");
const number = (text) => cell(text, "number");
const sentence = (text) => cell(text, text ? "sentence" : "");

/** Shows `all` rows of a table up to its limit. Each row of `toCells` is a list of cells. */
function fillTable(id, all, toCells, none) {
  const table = byId(id);
  const limit = limits.get(id) || ROWS_STEP;
  const rows = all.slice(0, limit).map(toCells);
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] || body.insertRow();
    cells.forEach((one, place) => {
      const found = row.cells[place] || row.insertCell();
      setText(found, typeof one === "string" ? one : one.text);
      setClass(found, typeof one === "string" ? "" : one.kind);
    });
  });
  const hidden = all.length - rows.length;
  table.hidden = all.length === 0;
  setText(
    byId(`${id}-none`),
    all.length === 0
      ? none
      : hidden > 0
        ? `Shown: ${count(rows.length)} of ${count(all.length)}`
        : "",
  );
  const more = byId(`${id}-more`);
  more.hidden = hidden <= 0;
  setText(more, `Show ${count(Math.min(hidden, ROWS_STEP))} more of ${count(all.length)}`);
  const heading = byId(`n-${id}`);
  if (heading) setText(heading, count(all.length));
}

function newElement(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

/** Shows gateway, fabric, readiness. */
function showHeader(status) {
  setText(byId("gateway"), `Gateway ${status.gateway}`);
  document.title = `${status.gateway}: Landbridge`;
  const about = [`region ${status.region}`, `fabric ${status.fabric}`];
  about.push(`up for ${time(status.uptime_seconds)}`, `Landbridge ${status.program_version}`);
  setText(byId("about"), about.join(", "));
  const blocking = status.problems.filter((problem) => problem.blocks).length;
  const warnings = status.problems.length - blocking;
  const ready = byId("ready");
  setText(
    ready,
    blocking
      ? `Not ready: ${plural(blocking, "alarm")}`
      : warnings
        ? `Ready, ${plural(warnings, "warning")}`
        : "Ready",
  );
  setClass(ready, `state ${blocking ? "bad" : warnings ? "warn" : "good"}`);
}

/** Shows the problems with what to do. */
function showAlarms(status) {
  const alarms = status.problems.map((problem) => ({
    blocks: problem.blocks,
    title: `${problem.blocks ? "Not ready" : "Warning"}: ${problem.subject}`,
    text: problem.found,
    remedy: problem.remedy,
  }));
  if (status.lost_log_lines > 0) {
    alarms.push({
      blocks: false,
      title: "Warning: log",
      text: `${count(status.lost_log_lines)} lines lost since the start`,
      remedy: "read the gateway's stderr, or give its disk room",
    });
  }
  const shown = alarms.slice(0, limits.get("alarms") || ROWS_STEP);
  const state = JSON.stringify([shown, alarms.length]);
  setText(byId("n-alarms"), count(alarms.length));
  const list = byId("alarms");
  if (list.dataset.state === state) return;
  list.dataset.state = state;
  const items = shown.map((alarm) => {
    const item = newElement("li", alarm.blocks ? "blocks" : "");
    item.append(
      newElement("p", alarm.blocks ? "bad" : "warn", alarm.title),
      newElement("p", "", alarm.text),
    );
    if (alarm.remedy) item.append(newElement("p", "soft", `What to do: ${alarm.remedy}`));
    return item;
  });
  if (alarms.length > shown.length) {
    items.push(newElement("li", "", `and ${count(alarms.length - shown.length)} more: see status`));
  }
  list.replaceChildren(...(items.length ? items : [newElement("li", "good", "No alarm.")]));
}

function showLinks(loads) {
  const row = ({ link, word, kind, out, in: inward, used, up, lanes, rtts, loss, alarm }) => [
    name(link.between.join("-")),
    cell(word, kind),
    number(rate(out)),
    number(rate(inward)),
    number(rate(link.effective_bits_per_second)),
    number(percent(used)),
    limitOrigin(link),
    number(`${up}/${lanes}`),
    number(rttRange(rtts)),
    number(time(link.rtt_ms / 1000)),
    cell(percent(loss) + (alarm ? " ALARM" : ""), alarm ? "number bad" : "number"),
    number(percent(link.loss)),
  ];
  const order = { bad: 0, warn: 1 };
  const place = (load) => order[load.kind] ?? 2;
  const sorted = [...loads].sort((a, b) => place(a) - place(b));
  fillTable("links", sorted, row, "No link leaves this region.");
}

function showCollectives(status) {
  const words = { awaiting: "awaits posts", running: "running", settling: "awaits receipts" };
  const all = status.jobs.flatMap((job) =>
    job.collectives.map((collective) => ({ job, collective })),
  );
  all.sort((a, b) => b.collective.seconds - a.collective.seconds);
  const row = ({ job, collective }) => [
    name(job.job),
    number(String(collective.sequence)),
    `${collective.op} of ${collective.dtype}`,
    number(bytes(collective.bytes)),
    words[collective.state] || String(collective.state),
    sentence(awaitedRanks(collective.awaited)),
    number(time(collective.seconds)),
  ];
  fillTable("collectives", all, row, "No collective is under way.");
}

function showStragglers(status) {
  const all = status.jobs.filter((job) => job.straggler);
  all.sort((a, b) => b.straggler.behind_seconds - a.straggler.behind_seconds);
  const row = (job) => {
    const straggler = job.straggler;
    return [
      name(job.job),
      `${straggler.kind} ${straggler.name}`,
      number(time(straggler.behind_seconds)),
      number(count(straggler.collectives)),
      number(time(straggler.since_seconds)),
    ];
  };
  fillTable("stragglers", all, row, "Nothing delays the others.");
}

function showCommits(status) {
  const all = status.jobs.flatMap((job) => [
    ...job.commits.map((commit) => [
      name(job.job),
      number(String(commit.step)),
      `rank ${commit.rank}`,
      commit.awaited.join(", ") || "nobody",
      number(time(commit.seconds)),
    ]),
    ...(job.draining ? [drainRow(job, job.draining)] : []),
  ]);
  fillTable("commits", all, (cells) => cells, "No commit waits, and no job is being finished.");
}

function drainRow(job, draining) {
  const waits = [];
  if (draining.collectives.length) waits.push(plural(draining.collectives.length, "collective"));
  if (draining.uncommitted.length)
    waits.push(`last commits of ranks ${ranges(draining.uncommitted)}`);
  const left = time(draining.seconds_left);
  const text = `exits within ${left}, waits for ${waits.join(", ") || "nothing"}`;
  return [name(job.job), number("-"), "-", sentence(text), number("-")];
}

function showJobs(status) {
  const filter = byId("filter").value.toLowerCase();
  const states = jobStates(status).filter(({ job }) => job.job.toLowerCase().includes(filter));
  const row = ({ job, word, kind }) => {
    const { throughput, efficiency } = jobProgress(job);
    const plan = job.plan;
    const totals = job.totals;
    const attached = job.ranks.filter((rank) => rank.attached).length;
    return [
      name(job.job),
      number(known(job.epoch, String)),
      plan ? `${plan.algorithm} (${plan.hash})` : "-",
      number(`${attached}/${job.ranks.length}`),
      number(count(job.collectives.length)),
      number(rate(throughput)),
      number(percent(efficiency)),
      number(count(totals.completed)),
      cell(count(totals.failed), totals.failed > 0 ? "number warn" : "number"),
      number(known(job.completed_seconds_ago, (ago) => `${time(ago)} ago`)),
      cell(word, kind),
    ];
  };
  fillTable(
    "jobs",
    states,
    row,
    filter ? "No job has such a name." : "The region file has no job.",
  );
}

function showMembers(status) {
  const rates = peerRates();
  const peers = new Map(status.peers.map((peer) => [peer.gateway, peer]));
  const all = [];
  for (const region of live.fabric ? live.fabric.regions : []) {
    for (const member of region.gateways) {
      all.push({
        gateway: member.gateway,
        place: region.region,
        member,
        peer: peers.get(member.gateway),
      });
    }
  }
  if (all.length === 0) {
    status.peers.forEach((peer) => all.push({ gateway: peer.gateway, place: peer.region, peer }));
  }
  const troubled = ({ peer }) => (peer && peer.state !== "up" ? 0 : 1);
  all.sort((a, b) => troubled(a) - troubled(b));
  fillTable("members", all, (row) => memberRow(row, status, rates), "The fabric is not known.");
}

function memberRow({ gateway, place, member, peer }, status, rates) {
  const last = member ? member.first_rank + member.ranks - 1 : 0;
  const ranks =
    !member || member.ranks === 0
      ? "-"
      : member.ranks === 1
        ? `${last}`
        : `${member.first_rank}-${last}`;
  const head = [name(gateway), place, ranks];
  if (!peer) {
    const here = gateway === status.gateway;
    const others = here ? "this gateway" : "no lanes from here";
    const unknown = Array.from({ length: 6 }, () => number("-"));
    return [...head, cell(others, here ? "good" : "soft"), ...unknown, ""];
  }
  const [word, kind] = peerState(peer.state);
  const bits = (rates && rates.get(gateway)) || [NaN, NaN];
  const problem = [peer.problem, peer.remedy].filter(Boolean).join("; ");
  return [
    ...head,
    cell(word, kind),
    number(`${peer.lanes_up}/${peer.lanes}`),
    number(known(peer.rtt_ms, (rtt) => time(rtt / 1000))),
    cell(
      percent(peer.loss) + (peer.loss_alarm ? " ALARM" : ""),
      peer.loss_alarm ? "number bad" : "number",
    ),
    number(rate(bits[0])),
    number(rate(bits[1])),
    number(known(peer.mtu, (mtu) => `${mtu} B`)),
    sentence(problem),
  ];
}

/** Regions that the configuration names; the map and the gateways have all. */
const REGIONS_NAMED = 12;
/** Shows what the files say, and where they differ from what runs. */
function showConfig(status) {
  const fabric = live.fabric;
  const fields = [
    ["fabric", status.fabric],
    ["identity", status.fabric_identity],
  ];
  if (fabric) {
    const ranks = fabric.regions.reduce((sum, region) => sum + region.ranks, 0);
    const gateways = fabric.regions.reduce((sum, region) => sum + region.gateways.length, 0);
    const names = fabric.regions.map((region) => region.region);
    const shown = names.slice(0, REGIONS_NAMED).join(", ");
    const more = names.length > REGIONS_NAMED ? ", ..." : "";
    fields.push(["regions", `${count(names.length)}: ${shown}${more}`]);
    fields.push(["gateways, ranks", `${count(gateways)}, ${count(ranks)}`]);
    fields.push(["links", count(fabric.links.length)], ["MTU", `${fabric.mtu_bytes} B`]);
  }
  fields.push(["restart needed for", status.restart_needed.join(", ") || "nothing"]);
  fields.push(["socket", status.socket_problem || "trainers can attach"]);
  const list = byId("config");
  const state = JSON.stringify(fields);
  if (list.dataset.state !== state) {
    list.dataset.state = state;
    list.replaceChildren(
      ...fields.flatMap(([key, value]) => [newElement("dt", "", key), newElement("dd", "", value)]),
    );
  }
  const row = (difference) => [
    name(difference.job),
    difference.gateway,
    differenceText(difference.kind),
  ];
  fillTable("differences", status.job_differences, row, "All region files agree on the jobs.");
}

const DIFFERENCES = {
  missing_there: "not in its region file: no epoch",
  missing_here: "not in the region file here: no epoch there",
  other_token: "another token",
};
function differenceText(kind) {
  if (typeof kind === "string") return DIFFERENCES[kind] || kind;
  const weights = kind.other_weight || {};
  return `weight ${weights.here} here, ${weights.there} there`;
}

function showHour(history) {
  const row = (sum) => [
    `${5 * sum.index} to ${5 * sum.index + 5}`,
    number(rate((8 * sum.sent) / sum.seconds)),
    number(rate((8 * sum.received) / sum.seconds)),
    number(count(sum.done)),
    cell(count(sum.failed), sum.failed > 0 ? "number warn" : "number"),
    number(percent(sum.bound / sum.taken)),
    number(count(sum.lost)),
    number(count(sum.problems)),
    cell(sum.ready ? "yes" : "no", sum.ready ? "number" : "number bad"),
  ];
  fillTable("hour", periods(history.samples), row, "The first sample comes 20 s after the start.");
  setText(
    byId("n-hour"),
    `${count(history.samples.length)} samples, one each ${time(history.interval_seconds)}`,
  );
}
