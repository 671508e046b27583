"use strict";
// The model: computes what is shown from the JSON of a gateway, /status, /history and /fabric.
// A variable is named after the object whose keys it has; a test compares the keys.

/** Rows that a table shows at first, and that each click adds. */
const ROWS_STEP = 20;
/** Seconds over which the load of links is averaged. */
const LOAD_SECONDS = 5;
/** Seconds over which the throughput of jobs is averaged; collectives may be rare. */
const JOB_SECONDS = 30;

/** The data of the page. `marks` are the sums of the last statuses, oldest first. */
const live = { status: null, before: null, fabric: null, history: null, marks: [] };

/** Prints a number with three significant digits. */
function digits(number) {
  if (number === 0) return "0";
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(number))));
  return number
    .toFixed(Math.min(places, 9))
    .replace(/(\.\d*?)0+$/, "$1")
    .replace(/\.$/, "");
}

/** Prints a number in the smallest of some units, largest first, in which it reaches neither the next
 * unit nor 1000, as the program does. */
function inUnits(number, units) {
  if (!Number.isFinite(number)) return "-";
  for (let at = units.length - 1; ; at -= 1) {
    const text = digits(number / units[at][0]);
    const most = at === 0 ? Infinity : Math.min(units[at - 1][0] / units[at][0], 1000);
    if (Math.abs(text) < most) return `${text} ${units[at][1]}`;
  }
}

const bytes = (number) =>
  inUnits(number, [
    [2 ** 60, "EiB"],
    [2 ** 50, "PiB"],
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ]);
const rate = (number) =>
  inUnits(number, [
    [1e12, "Tbit/s"],
    [1e9, "Gbit/s"],
    [1e6, "Mbit/s"],
    [1e3, "kbit/s"],
    [1, "bit/s"],
  ]);
const time = (number) =>
  inUnits(number, [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "us"],
    [1e-9, "ns"],
  ]);
const percent = (fraction) => (Number.isFinite(fraction) ? `${digits(100 * fraction)} %` : "-");
const count = (number) => (Number.isFinite(number) ? number.toLocaleString("en") : "-");
/** Prints a number with its word: `plural(2, "rank")` is "2 ranks". */
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const known = (value, print) => (value === null || value === undefined ? "-" : print(value));

/** Prints numbers of ranks, such as "0-2, 7". */
function ranges(numbers) {
  const parts = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else parts.push([number, number]);
  }
  const shown = parts.slice(0, 8).map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`));
  return shown.join(", ") + (parts.length > 8 ? ` and ${count(parts.length - 8)} more` : "");
}

/** Keeps the sums of a status, with which later ones are compared. */
function addMark(status) {
  const last = live.marks[live.marks.length - 1];
  if (last && last.at >= status.uptime_seconds) {
    // The same status again, or a gateway that was restarted.
    if (last.at === status.uptime_seconds) return;
    live.marks = [];
  }
  live.marks.push({
    at: status.uptime_seconds,
    sent: new Map(
      status.peers.map((peer) => [peer.gateway, [peer.sent_bytes, peer.received_bytes]]),
    ),
    jobs: new Map(status.jobs.map((job) => [job.job, job.totals])),
  });
  const begin = status.uptime_seconds - 2 * JOB_SECONDS;
  while (live.marks.length > 2 && live.marks[1].at < begin) live.marks.shift();
}

/** Returns the newest mark and the newest one that is about so many seconds older, if there is. */
function marksOver(seconds) {
  const now = live.marks[live.marks.length - 1];
  if (!now || live.marks.length < 2) return null;
  const older = live.marks.slice(0, -1);
  const from = older.reverse().find((mark) => now.at - mark.at >= seconds) || live.marks[0];
  return { from, now, seconds: now.at - from.at };
}

/** Returns bits per second out and in for each peer; null before the second status. */
function peerRates() {
  const span = marksOver(LOAD_SECONDS);
  if (!span) return null;
  const rates = new Map();
  for (const [gateway, [sent, received]] of span.now.sent) {
    const before = span.from.sent.get(gateway) || [sent, received];
    const bits = [sent - before[0], received - before[1]].map(
      (n) => (8 * Math.max(0, n)) / span.seconds,
    );
    rates.set(gateway, bits);
  }
  return rates;
}

/** Returns bytes per second and efficiency of a job of late; NaN where nothing is known. */
function jobProgress(job) {
  const span = marksOver(JOB_SECONDS);
  const before = span && span.from.jobs.get(job.job);
  if (!before) return { throughput: NaN, efficiency: NaN };
  const totals = job.totals;
  const taken = totals.seconds - before.seconds;
  return {
    throughput: (8 * (totals.bytes - before.bytes)) / span.seconds,
    efficiency: taken > 0 ? (totals.bound_seconds - before.bound_seconds) / taken : NaN,
  };
}

/** Returns the region of a rank; an empty text where the fabric is not known. */
function regionOfRank(number) {
  const fabric = live.fabric;
  for (const region of fabric ? fabric.regions : []) {
    for (const member of region.gateways) {
      if (number >= member.first_rank && number < member.first_rank + member.ranks) {
        return region.region;
      }
    }
  }
  return "";
}

/** Prints the ranks that are awaited, by region. */
function awaitedRanks(numbers) {
  if (numbers.length === 0) return "nobody";
  const byRegion = new Map();
  for (const number of numbers) {
    const name = regionOfRank(number);
    byRegion.set(name, [...(byRegion.get(name) || []), number]);
  }
  const parts = [...byRegion].map(([name, ranks]) => {
    const word = ranks.length === 1 ? "rank" : "ranks";
    return `${word} ${ranges(ranks)}${name ? ` (${name})` : ""}`;
  });
  return (
    parts.slice(0, 4).join("; ") +
    (parts.length > 4 ? `; and ${parts.length - 4} more regions` : "")
  );
}

const PEER_WORDS = {
  up: ["up", "good"],
  degraded: ["lanes missing", "warn"],
  meeting: ["meeting", "warn"],
  connecting: ["no lane", "bad"],
};
/** Returns word and kind of a peer's state. */
const peerState = (state) => PEER_WORDS[state] || [String(state), "warn"];

/** Returns who set the limit of a link that applies now. */
function limitOrigin(link) {
  if (link.measured_bits_per_second === link.effective_bits_per_second) return "measurement";
  if (link.operator_gateway) return `operator at ${link.operator_gateway}`;
  return link.scheduled_bits_per_second === null ? "fabric" : "schedule";
}

/** Returns the links of this region with their load, lanes, RTT and loss. */
function linkLoads(status) {
  const rates = peerRates();
  return status.links.map((link) => {
    const far = link.between[0] === status.region ? link.between[1] : link.between[0];
    const peers = status.peers.filter((peer) => peer.region === far);
    const load = {
      link,
      far,
      out: rates ? 0 : NaN,
      in: rates ? 0 : NaN,
      up: 0,
      lanes: 0,
      alarm: false,
    };
    load.rtts = [];
    load.loss = NaN;
    for (const peer of peers) {
      const bits = (rates && rates.get(peer.gateway)) || [0, 0];
      load.out += bits[0];
      load.in += bits[1];
      load.up += peer.lanes_up;
      load.lanes += peer.lanes;
      load.alarm = load.alarm || peer.loss_alarm;
      if (peer.rtt_ms !== null) load.rtts.push(peer.rtt_ms / 1000);
      if (peer.lanes_up > 0)
        load.loss = Number.isNaN(load.loss) ? peer.loss : Math.max(load.loss, peer.loss);
    }
    load.used = Math.max(load.out, load.in) / link.effective_bits_per_second;
    const outage = status.links_down.find(
      (outage) => outage.between.join() === link.between.join(),
    );
    const [word, kind] = outage
      ? [outage.way_round ? `down, round by ${outage.way_round}` : "down", "bad"]
      : load.lanes === 0
        ? ["no peer of this gateway", "soft"]
        : load.up === 0
          ? ["no lane", "bad"]
          : load.up < load.lanes
            ? ["lanes missing", "warn"]
            : load.alarm
              ? ["loses more than expected", "warn"]
              : ["up", "good"];
    return Object.assign(load, { word, kind });
  });
}

/** Prints the RTTs of the gateways behind a link. */
function rttRange(rtts) {
  if (rtts.length === 0) return "-";
  const [least, most] = [Math.min(...rtts), Math.max(...rtts)].map(time);
  return least === most ? least : `${least} to ${most}`;
}

/** Returns the jobs with their state in words, those in trouble first. */
function jobStates(status) {
  const states = status.jobs.map((job) => {
    const straggler = job.straggler;
    const waits = job.collectives.some((collective) => collective.awaited.length > 0);
    const [word, kind] = job.removed
      ? ["removed from the region file", "warn"]
      : job.draining
        ? ["finishing before the gateway exits", "warn"]
        : job.epoch === null
          ? ["no epoch", "bad"]
          : straggler
            ? [`waits for ${straggler.kind} ${straggler.name}`, "warn"]
            : waits
              ? ["awaits posts", "good"]
              : ["in its epoch", "good"];
    return { job, word, kind };
  });
  const order = { bad: 0, warn: 1, good: 2 };
  return states.sort((a, b) => order[a.kind] - order[b.kind] || (a.job.job < b.job.job ? -1 : 1));
}

/** Returns samples of the history in periods of five minutes, newest first. */
function periods(samples) {
  const found = [];
  const end = samples.length ? samples[samples.length - 1].at_seconds : 0;
  for (const sample of samples) {
    const index = Math.floor((end - sample.at_seconds) / 300);
    const sum = (found[index] = found[index] || {
      index,
      seconds: 0,
      sent: 0,
      received: 0,
      done: 0,
      failed: 0,
      lost: 0,
      taken: 0,
      bound: 0,
      problems: 0,
      ready: true,
    });
    sum.seconds += sample.seconds;
    sum.sent += sample.sent_bytes;
    sum.received += sample.received_bytes;
    sum.done += sample.completed;
    sum.failed += sample.failed;
    sum.lost += sample.lost_packets;
    sum.taken += sample.collective_seconds;
    sum.bound += sample.bound_seconds;
    sum.problems = Math.max(sum.problems, sample.problems);
    sum.ready = sum.ready && sample.ready;
  }
  return found.filter(Boolean);
}
