//! Rounds over all rows: each row once in a round, so that a busy spell of the machine meets all.

use crate::ground::{Ground, LoopbackSites};
use crate::measure::exchanges::Exchanges;
use crate::measure::gateways::Gateways;
use crate::measure::profile;
use crate::measure::running::Running;
use crate::measure::streams::Streams;
use crate::measure::system_calls::CallCounter;
use crate::measured::{Cell, Measured, Sample};
use crate::report::flame_graph;
use crate::row::{Contender, FULL, Row};
use scenarios::testbed::error::LabError;
use scenarios::testbed::interrupt;
use scenarios::testbed::processes::Processes;
use scenarios::testbed::programs::{is_installed, openssl_version};
use scenarios::testbed::site::Testbed as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The programs that are measured.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The binary under test.
    pub landbridge: PathBuf,
    /// An older binary, measured in the same run.
    pub before: Option<PathBuf>,
    /// The exchange over quinn alone.
    pub quinn: PathBuf,
    /// Python with torch.
    pub torch: Option<PathBuf>,
}

/// The machine that rows are measured on.
pub struct Bench {
    /// The loopback device.
    pub ground: Ground,
    /// The programs.
    pub programs: Programs,
    /// The program that counts system calls, if one works.
    pub calls: Option<CallCounter>,
}

impl Bench {
    /// Returns why a contender cannot be measured here, if so.
    fn missing(&self, who: Contender) -> Option<&'static str> {
        let over_tcp = |is_there: bool, why| match (is_there, self.ground) {
            (false, _) => Some(why),
            (true, Ground::MachineDevice) => {
                Some("TCP follows the MTU of the device, which is not ours to set: needs root")
            }
            (true, Ground::OwnDevice) => None,
        };
        match who {
            Contender::Landbridge | Contender::Quinn => None,
            Contender::Before => self.programs.before.is_none().then_some("no --before"),
            Contender::Tcp => over_tcp(is_installed("iperf3"), "install iperf3"),
            Contender::Tls => over_tcp(openssl_version().is_some(), "install openssl"),
            Contender::Gloo => over_tcp(
                self.programs.torch.is_some(),
                "no torch in target/peers/torch: the whole bench, or `bench wan`, installs it",
            ),
        }
    }

    /// Starts the processes of a row.
    fn start(&self, programs: &Programs, row: &Row) -> Result<Box<dyn Running>, LabError> {
        self.ground.set_mtu(row.mtu)?;
        let landbridge = match row.who {
            Contender::Before => programs.before.as_ref().unwrap_or(&programs.landbridge),
            _ => &programs.landbridge,
        };
        let sites = LoopbackSites::new(landbridge, row)?;
        let running: Box<dyn Running> = match row.who {
            Contender::Landbridge | Contender::Before => Box::new(Gateways::start(sites, row)?),
            Contender::Quinn => Box::new(Exchanges::start_quinn(&programs.quinn, sites, row)?),
            Contender::Tcp | Contender::Tls => Box::new(Streams::start(row.who, sites)?),
            Contender::Gloo => {
                let python = programs.torch.as_deref().unwrap_or(Path::new("python3"));
                Box::new(Exchanges::start_gloo(python, sites)?)
            }
        };
        Ok(running)
    }

    /// Measures one run of a row.
    fn sample(&self, row: &Row) -> Result<Sample, LabError> {
        let sites = LoopbackSites::new(&self.programs.landbridge, row)?;
        let _busy = row.busy.then(|| Processes::start_busy(sites.folder())).transpose()?;
        self.start(&self.programs, row)?.sample()
    }

    /// Counts the system calls of a row; `None` where nothing can count them.
    fn count_calls(&self, row: &Row) -> Result<Option<f64>, LabError> {
        // Beside busy processes it makes about as many.
        let Some(counter) = self.calls.filter(|_| row.who.waits_for_watchers() && !row.busy) else {
            return Ok(None);
        };
        let mut running = self.start(&self.programs, row)?;
        counter.count(&mut *running).map(Some)
    }

    /// Measures all rows: in the first round each of them, then those that have fewer runs than
    /// they want, until `until`.
    ///
    /// # Errors
    /// [`LabError::Interrupted`]; whatever else fails is skipped.
    pub fn measure_rows(
        &self,
        rows: &[Row],
        until: Instant,
        measured: &mut Measured,
    ) -> Result<(), LabError> {
        measured.cells.extend(rows.iter().map(|row| Cell::new(*row)));
        let mut skipped = self.skip_missing(measured);
        let rounds = rows.iter().map(|row| row.runs).max().unwrap_or(0);
        for round in 0..rounds {
            for (index, skipped) in skipped.iter_mut().enumerate() {
                let row = measured.cells[index].row;
                if row.runs <= round || *skipped {
                    continue;
                }
                if round > 0 && Instant::now() >= until {
                    measured.skip(format!("round {} of {rounds}: the time was up", round + 1));
                    return Ok(());
                }
                eprintln!("round {}/{rounds}, row {}/{}: {row}", round + 1, index + 1, rows.len());
                *skipped = !self.measure_row(round, index, measured);
                if interrupt::has_come() {
                    return Err(LabError::Interrupted);
                }
            }
        }
        Ok(())
    }

    /// Measures one run of a row; in the first round also its system calls. Returns whether the run
    /// has come to its end.
    fn measure_row(&self, round: usize, index: usize, measured: &mut Measured) -> bool {
        let row = measured.cells[index].row;
        match self.sample(&row) {
            Ok(sample) => {
                eprintln!("  {:.2} CPU-s/GB", sample.cpu_per_gb());
                measured.cells[index].samples.push(sample);
            }
            Err(error) => {
                measured.skip(format!("{row}: {error}"));
                return false;
            }
        }
        if round == 0 {
            match self.count_calls(&row) {
                Ok(calls) => measured.cells[index].calls_per_gb = calls,
                Err(error) => measured.skip(format!("system calls of {row}: {error}")),
            }
        }
        true
    }

    /// Records the contenders that are missing, once each. Returns for each row whether it is
    /// skipped.
    fn skip_missing(&self, measured: &mut Measured) -> Vec<bool> {
        let mut told: Vec<Contender> = Vec::new();
        let mut skipped = Vec::new();
        for row in measured.cells.iter().map(|cell| cell.row).collect::<Vec<_>>() {
            let why = self.missing(row.who);
            skipped.push(why.is_some());
            if let Some(why) = why
                && !told.contains(&row.who)
            {
                told.push(row.who);
                measured.skip(format!("all rows of {}: {why}", row.who.name()));
            }
        }
        skipped
    }

    /// Draws a flame graph of each contender at full speed, from programs with symbols.
    ///
    /// # Errors
    /// [`LabError::Interrupted`]; whatever else fails is skipped.
    pub fn draw_flame_graphs(
        &self,
        folder: &Path,
        with_symbols: Option<&Path>,
        measured: &mut Measured,
    ) -> Result<(), LabError> {
        let drawn = [Contender::Landbridge, Contender::Quinn, Contender::Tcp, Contender::Tls];
        if let Some(why) = profile::missing() {
            measured.skip(format!("{} flame graphs: {why}", drawn.len()));
            return Ok(());
        }
        let mut programs = self.programs.clone();
        match with_symbols {
            Some(folder) => {
                programs.landbridge = folder.join("landbridge");
                programs.quinn = folder.join("bare-quinn");
            }
            None => measured.skip("names in flame graphs: programs have no symbols".to_owned()),
        }
        for who in drawn.into_iter().filter(|who| self.missing(*who).is_none()) {
            let (row, name) = (Row { who, ..Row::plain(FULL) }, flame_graph::file_name(who));
            eprintln!("flame graph: {}", who.name());
            let drawn = self
                .start(&programs, &row)
                .and_then(|mut running| profile::record(&mut *running))
                .and_then(|stacks| {
                    let svg = flame_graph::draw(&row.to_string(), &stacks);
                    Ok(std::fs::write(folder.join(&name), svg)?)
                });
            match drawn {
                Ok(()) => measured.flames.push((name, who.name().to_owned())),
                Err(LabError::Interrupted) => return Err(LabError::Interrupted),
                Err(error) => measured.skip(format!("flame graph of {}: {error}", who.name())),
            }
        }
        Ok(())
    }
}
