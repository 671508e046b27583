//! One fault from beginning to end: warm up, strike, listen, heal, and all-reduce again.

use super::deployment::{BYTES, Deployment, Line};
use super::fault::{Blow, Case, RANKS, Victim, recovery_within, verdict_within};
use hier_collectives::post::FailureCode;
use rustix::process::Signal;
use scenarios::faults::Direction;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// 2 all-reduces that the processes finish within [`PATIENCE`] before a fault strikes.
const WARM: u64 = 2;
/// 90 s for start and rendezvous, which are not under test.
const PATIENCE: Duration = Duration::from_secs(90);

/// 0.95 of the bytes of a collective: a fault beyond would miss the collective.
const SHARE_MAX: f64 = 0.95;

/// The outcome of a fault.
#[derive(Debug, Serialize)]
pub struct Report {
    scenario: String,
    /// The share of the bytes at which it was to strike, in percent.
    aimed_percent: f64,
    struck_percent: f64,
    /// The failures that ranks got for the collectives in flight, each once.
    heard: Vec<String>,
    /// The longest wait of any rank for an outcome, in seconds.
    longest_wait: f64,
    /// From the end of the fault until every rank had all-reduced twice.
    recovery_seconds: f64,
    /// Violated promises; empty is good.
    pub wrong: Vec<String>,
}

/// Runs one case; the fault strikes at the share `at` of the bytes of a collective.
pub fn run(landbridge: &Path, case: &Case, at: f64) -> Report {
    let mut report = Report {
        scenario: case.name.clone(),
        aimed_percent: at * 100.0,
        struck_percent: f64::NAN,
        heard: vec![],
        longest_wait: 0.0,
        recovery_seconds: f64::NAN,
        wrong: vec![],
    };
    match Deployment::start(landbridge) {
        Ok((deployment, lines)) => {
            let mut watch = RunningCase { case, deployment, lines, ranks: Default::default() };
            if let Err(why) = watch.strike_and_heal(at, &mut report) {
                report.wrong.push(why);
            }
            report.wrong.extend(watch.unequal_results());
            if !report.wrong.is_empty() {
                report.wrong.push(watch.deployment.logs());
            }
        }
        Err(error) => report.wrong.push(format!("nothing started: {error}")),
    }
    report
}

/// A case while it runs: the processes, and the lines of the ranks so far.
struct RunningCase<'a> {
    case: &'a Case,
    deployment: Deployment,
    lines: Receiver<Line>,
    ranks: [RankLines; RANKS],
}

/// The lines that a rank has printed.
#[derive(Default)]
struct RankLines {
    /// Digests by epoch and sequence.
    done: BTreeMap<(u64, u64), String>,
    /// Number of outcomes of any kind.
    outcomes: u64,
    completed: u64,
}

impl RunningCase<'_> {
    /// Waits until the ranks have warmed up, strikes, and waits until all ranks work again.
    fn strike_and_heal(&mut self, at: f64, report: &mut Report) -> Result<(), String> {
        self.listen_until("all ranks have warmed up", PATIENCE, report, |ranks| {
            ranks.iter().all(|rank| rank.completed >= WARM)
        })?;
        report.struck_percent = self.wait_for_point(at, report)? * 100.0;
        match self.case.blow {
            Blow::Kill(victim) => self.kill(victim, report)?,
            Blow::Stop(victim, lasting) => self.stop(victim, lasting, report)?,
            Blow::Cut { way, lasting, disorder } => self.cut(way, lasting, report, disorder)?,
        }
        let healed = Instant::now();
        let before: [u64; RANKS] = self.ranks.each_ref().map(|rank| rank.completed);
        self.listen_until("all ranks work again", recovery_within(), report, |ranks| {
            ranks.iter().zip(before).all(|(rank, before)| rank.completed >= before + 2)
        })?;
        report.recovery_seconds = healed.elapsed().as_secs_f64();
        Ok(())
    }

    /// Kills the victim, and starts it again once all others have got an outcome.
    fn kill(&mut self, victim: Victim, report: &mut Report) -> Result<(), String> {
        let before = self.ranks.each_ref().map(|rank| rank.outcomes);
        self.deployment.kill(victim).map_err(system_error)?;
        self.listen_until("survivors have an outcome", verdict_within(), report, |ranks| {
            let heard = |rank: usize| ranks[rank].outcomes > before[rank];
            (0..RANKS).all(|rank| victim == Victim::Rank(rank) || heard(rank))
        })?;
        self.deployment.revive(victim).map_err(system_error)
    }

    /// Stops the victim for a time. A stopped rank must be named as the straggler.
    fn stop(
        &mut self,
        victim: Victim,
        lasting: Duration,
        report: &mut Report,
    ) -> Result<(), String> {
        self.deployment.signal(victim, Signal::STOP).map_err(system_error)?;
        self.listen_for(lasting, report);
        self.deployment.signal(victim, Signal::CONT).map_err(system_error)?;
        match victim {
            Victim::Rank(rank) => self.check_straggler_named(rank),
            _ => Ok(()),
        }
    }

    /// Checks that the log of every gateway names the awaited rank.
    fn check_straggler_named(&self, rank: usize) -> Result<(), String> {
        let words = format!("has awaited ranks {rank} for");
        let silent =
            ["east", "west"].into_iter().find(|name| !self.deployment.has_logged(name, &words));
        silent.map_or(Ok(()), |name| Err(format!("the log of {name} lacks `{words}`")))
    }

    /// Cuts the link for a time.
    fn cut(
        &mut self,
        way: Direction,
        lasting: Duration,
        report: &mut Report,
        disorder: bool,
    ) -> Result<(), String> {
        self.deployment.cut(way).map_err(system_error)?;
        self.listen_for(lasting, report);
        self.deployment.join(disorder).map_err(system_error)
    }

    /// Waits until the share `at` of the bytes of a collective is sent. Returns the share that was
    /// sent at last.
    fn wait_for_point(&mut self, at: f64, report: &mut Report) -> Result<f64, String> {
        let deadline = Instant::now() + PATIENCE;
        let sent = |watch: &Self| watch.deployment.sent().ok_or("no status of east's gateway");
        let mut base = (sent(self)? / BYTES + 1) * BYTES;
        while Instant::now() < deadline {
            self.listen_for(Duration::from_millis(1), report);
            let now = sent(self)?;
            let share = now.saturating_sub(base) as f64 / BYTES as f64;
            if share > SHARE_MAX {
                base = (now / BYTES + 1) * BYTES;
            } else if now >= base && share >= at {
                return Ok(share);
            }
        }
        Err("the bytes never came as far as the blow".to_owned())
    }

    /// Reads lines of the ranks until `enough` holds; an error after `patience`.
    fn listen_until(
        &mut self,
        what: &str,
        patience: Duration,
        report: &mut Report,
        mut enough: impl FnMut(&[RankLines; RANKS]) -> bool,
    ) -> Result<(), String> {
        let begun = Instant::now();
        while !enough(&self.ranks) {
            if begun.elapsed() > patience {
                let counts = self.ranks.each_ref().map(|rank| (rank.outcomes, rank.completed));
                return Err(format!("not within {patience:?}: {what}; outcomes, done: {counts:?}"));
            }
            self.listen_for(Duration::from_millis(100), report);
        }
        Ok(())
    }

    /// Reads lines of the ranks for a while, or until one has printed a line.
    fn listen_for(&mut self, span: Duration, report: &mut Report) {
        let deadline = Instant::now() + span;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(rest) {
                Ok(line) => self.read_line(&line, report),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Counts the outcome in a line of a rank and judges how long the rank has waited.
    fn read_line(&mut self, line: &Line, report: &mut Report) {
        let seen = &mut self.ranks[line.rank];
        let words: Vec<&str> = line.text.splitn(4, ' ').collect();
        let (millis, failed) = match words[..] {
            ["done", epoch, sequence, rest] => {
                let (millis, digest) = rest.split_once(' ').unwrap_or((rest, ""));
                let number = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX);
                seen.done.insert((number(epoch), number(sequence)), digest.to_owned());
                seen.completed += 1;
                (millis, None)
            }
            ["failed", _, millis, text] => {
                let (number, text) = text.split_once(' ').unwrap_or((text, ""));
                let code = FailureCode::ALL.into_iter().find(|c| (*c as u8).to_string() == number);
                if code.is_none() {
                    report.wrong.push(format!("rank {}: no code: {}", line.rank, line.text));
                }
                if self.case.fails_nothing() {
                    report.wrong.push(format!("rank {}: {text}", line.rank));
                }
                let heard = format!("rank {}: {text}", line.rank);
                if !report.heard.contains(&heard) {
                    report.heard.push(heard);
                }
                (millis, code)
            }
            ["attached", ..] => return,
            _ => return report.wrong.push(format!("rank {}: {}", line.rank, line.text)),
        };
        seen.outcomes += 1;
        let waited = Duration::from_millis(millis.parse().unwrap_or(u64::MAX));
        report.longest_wait = report.longest_wait.max(waited.as_secs_f64());
        if waited > self.case.longest_wait(line.rank, failed) {
            report.wrong.push(format!("rank {} waited for {waited:?}: {}", line.rank, line.text));
        }
    }

    /// Returns a text for each result with other bits than the same result of another rank.
    fn unequal_results(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut first = BTreeMap::new();
        for (rank, seen) in self.ranks.iter().enumerate() {
            for (which, digest) in &seen.done {
                let (other, bits) = *first.entry(which).or_insert((rank, digest));
                if bits != digest {
                    let (epoch, sequence) = which;
                    wrong.push(format!(
                        "epoch {epoch}, collective {sequence}: rank {rank} has other bits than \
                         {other}"
                    ));
                }
            }
        }
        wrong
    }
}

/// Turns an error of the system into a text.
fn system_error(error: std::io::Error) -> String {
    error.to_string()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.wrong.is_empty() { "pass" } else { "FAIL" };
        write!(
            f,
            "{:28} at {:4.1} % (aimed {:4.1} %): {verdict}, longest wait {:4.1} s, \
             again after {:4.1} s",
            self.scenario,
            self.struck_percent,
            self.aimed_percent,
            self.longest_wait,
            self.recovery_seconds,
        )?;
        for (mark, texts) in [("heard", &self.heard), ("WRONG", &self.wrong)] {
            for text in texts {
                write!(f, "\n    {mark} {text}")?;
            }
        }
        Ok(())
    }
}
