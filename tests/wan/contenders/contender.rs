//! The contenders of the lab: Landbridge and its peers, each as its users run it.

use super::peer_runs::{RUNS, gloo, iperf, lost_packets, open_mpi};
use super::peers::Tools;
use crate::arms::simulated;
use crate::cell::{CUT_AFTER, Cell};
use crate::lab::testbed::{Ground, Lab};
use crate::measured::Arm;
use crate::report::figures::{BUSY, OPERATIONS, OURS, label};
use crate::row::{COMMON, Row};
use hier_collectives::plan::Operation;
use scenarios::testbed::collective_runs::CollectiveRuns;
use scenarios::testbed::controls::bare_quinn::{Setting, start_exchanges};
use scenarios::testbed::error::LabError;
use scenarios::testbed::gateways::{run_collectives, start_gateways};
use scenarios::testbed::processes::{Begins, Processes};
use scenarios::testbed::programs::is_installed;
use scenarios::testbed::run_times::RunTimes;
use scenarios::testbed::site::Testbed as _;
use std::path::Path;
use units::ByteCount;

/// A contender of the lab: a program, and the collective that it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    pub program: Program,
    pub operation: Operation,
}

/// A program of the lab, as it is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Landbridge,
    /// Ours, beside two busy processes of normal priority.
    BusyMachine,
    /// Ours, with the whole buffer as one segment.
    OneSegment,
    /// Ours, with quinn's CUBIC in place of `dedicated`.
    Cubic,
    /// One connection with quinn's defaults, or with so many bytes in flight.
    Quinn {
        window: Option<u64>,
    },
    /// Flows of `iperf3` with CUBIC, one way.
    Iperf {
        flows: u32,
    },
    /// PyTorch's Gloo.
    Gloo {
        congestion: &'static str,
    },
    /// Open MPI with four TCP connections for each peer.
    OpenMpi {
        congestion: &'static str,
    },
}

impl Program {
    /// Programs that are measured with all-reduces.
    const ALL: [Self; 12] = [
        Self::Landbridge,
        Self::BusyMachine,
        Self::OneSegment,
        Self::Cubic,
        Self::Quinn { window: None },
        Self::Quinn { window: Some(simulated::FIXED_WINDOW) },
        Self::Gloo { congestion: "cubic" },
        Self::Gloo { congestion: "bbr" },
        Self::OpenMpi { congestion: "cubic" },
        Self::OpenMpi { congestion: "bbr" },
        Self::Iperf { flows: 1 },
        Self::Iperf { flows: 8 },
    ];

    /// Programs that are measured with [`OPERATIONS`] as well.
    const OF_OPERATIONS: [Self; 5] = [
        Self::Landbridge,
        Self::Gloo { congestion: "cubic" },
        Self::Gloo { congestion: "bbr" },
        Self::OpenMpi { congestion: "cubic" },
        Self::OpenMpi { congestion: "bbr" },
    ];

    fn name(self) -> String {
        match self {
            Self::Landbridge => OURS.to_owned(),
            Self::BusyMachine => BUSY.to_owned(),
            Self::OneSegment => simulated::ONE_SEGMENT.to_owned(),
            Self::Cubic => simulated::CUBIC.to_owned(),
            Self::Quinn { window: None } => "quinn, defaults".to_owned(),
            Self::Quinn { window: Some(bytes) } => {
                format!("quinn, window of {}", ByteCount::new(bytes))
            }
            Self::Iperf { flows } => format!("iperf3 x{flows}, cubic"),
            Self::Gloo { congestion } => format!("Gloo, {congestion}"),
            Self::OpenMpi { congestion } => format!("Open MPI, {congestion}"),
        }
    }

    /// Returns the reason why the program cannot run on this machine, if it cannot.
    fn missing(self, tools: &Tools) -> Option<&'static str> {
        match self {
            Self::Landbridge
            | Self::BusyMachine
            | Self::OneSegment
            | Self::Cubic
            | Self::Quinn { .. } => None,
            Self::Iperf { .. } => (!is_installed("iperf3")).then_some("install iperf3"),
            Self::Gloo { .. } => tools.python.is_none().then_some(
                "no torch in target/peers/torch: install python3-venv, and see that pip can have it",
            ),
            Self::OpenMpi { .. } => tools.mpi.is_none().then_some(
                "no mpicc and mpirun: install openmpi-bin and libopenmpi-dev",
            ),
        }
    }
}

impl Contender {
    /// Returns the contenders of some arms, in the order of reports.
    pub fn of_arms(arms: &[Arm]) -> Vec<Self> {
        let all_reduces = arms.iter().any(|arm| matches!(arm, Arm::Lab | Arm::Netem));
        let operations = if arms.contains(&Arm::Operations) { &OPERATIONS[..] } else { &[] };
        let all_reduces = Program::ALL.into_iter().filter(|_| all_reduces);
        let all_reduces = all_reduces.map(|program| (program, Operation::AllReduce));
        let others = operations
            .iter()
            .flat_map(|operation| Program::OF_OPERATIONS.map(|program| (program, *operation)));
        all_reduces.chain(others).map(|(program, operation)| Self { program, operation }).collect()
    }

    /// Returns the name of the program, which several contenders have.
    pub fn name(self) -> String {
        self.program.name()
    }

    /// Returns name and operation for people.
    pub fn label(self) -> String {
        label(&self.name(), self.operation.name())
    }

    /// Returns the reason why the contender cannot run on this machine, if it cannot.
    pub fn missing(self, tools: &Tools) -> Option<&'static str> {
        self.program.missing(tools)
    }

    /// Returns the sizes in bytes with which the contender is measured over a link; none where it
    /// is not measured there.
    pub fn sizes(self, row: &Row) -> &'static [u64] {
        match (self.operation, self.program) {
            (Operation::AllReduce, Program::Landbridge) => row.sizes,
            (Operation::AllReduce, _) => &[COMMON],
            _ if row.has_operations() => &[COMMON],
            _ => &[],
        }
    }

    /// Runs these sizes over a link, in a lab of its own.
    ///
    /// # Errors
    /// [`LabError`]; no size has a result then.
    pub fn measure(
        self,
        tools: &Tools,
        row: &Row,
        ground: Ground,
        sizes: &[u64],
    ) -> Result<Vec<Cell>, LabError> {
        let controller = if self.program == Program::Cubic { "cubic" } else { "dedicated" };
        let lab = Lab::up(&tools.landbridge, row, ground, controller)?;
        let runs = CollectiveRuns { operation: self.operation, bytes: COMMON, iterations: RUNS };
        match self.program {
            Program::Landbridge | Program::Cubic => self.landbridge(&lab, row, sizes, &[]),
            Program::BusyMachine => {
                let _busy = Processes::start_busy(lab.folder())?;
                self.landbridge(&lab, row, sizes, &[])
            }
            Program::OneSegment => {
                self.landbridge(&lab, row, sizes, &["--segment", &format!("{COMMON} B")])
            }
            Program::Quinn { window } => self.quinn(tools, &lab, row, window),
            Program::Iperf { flows } => {
                lab.tcp("cubic")?;
                self.peer(&lab, row, |lab| iperf(lab, flows))
            }
            Program::Gloo { congestion } => {
                lab.tcp(congestion)?;
                let python = tools.python.as_deref().unwrap_or(Path::new("python3"));
                self.peer(&lab, row, |lab| gloo(lab, python, &runs))
            }
            Program::OpenMpi { congestion } => {
                lab.tcp(congestion)?;
                let program = tools.mpi.as_deref().unwrap_or(Path::new("collectives"));
                self.peer(&lab, row, |lab| open_mpi(lab, program, &runs))
            }
        }
    }

    fn landbridge(
        self,
        lab: &Lab,
        row: &Row,
        sizes: &[u64],
        arguments: &[&str],
    ) -> Result<Vec<Cell>, LabError> {
        let gateways = start_gateways(lab, arguments, CUT_AFTER)?;
        let (mut cells, mut lost) = (Vec::new(), lost_packets(lab));
        for bytes in sizes {
            let held = matches!(self.program, Program::Landbridge | Program::BusyMachine);
            let iterations = if held && *bytes <= COMMON { RUNS } else { 1 };
            let runs = CollectiveRuns { operation: self.operation, bytes: *bytes, iterations };
            let (cpu, emulator) = (gateways.cpu_seconds(), lab.emulator_meter());
            let seconds = run_collectives(lab, &runs, CUT_AFTER)?.seconds;
            let cpu = gateways.cpu_seconds() - cpu;
            let is_cut = seconds.is_empty();
            let emulator_share = emulator.map(|meter| meter.share());
            let mut cell = self.cell(lab, row, *bytes, seconds)?;
            cell.emulator_share = emulator_share;
            if is_cut {
                cells.push(cell);
                break;
            }
            let moved = *bytes as f64 * f64::from(iterations) / 1e9;
            cell.cpu_seconds_per_gb = Some(cpu / moved).filter(|_| cpu >= CPU_SECONDS_MIN);
            let before = std::mem::replace(&mut lost, lost_packets(lab));
            let packets = lost.zip(before).map(|(after, before)| after - before);
            let of_run = |packets| packets * simulated::PACKET_PAYLOAD / u64::from(iterations);
            cell.retransmitted_bytes = packets.map(of_run);
            cells.push(cell);
        }
        Ok(cells)
    }

    fn quinn(
        self,
        tools: &Tools,
        lab: &Lab,
        row: &Row,
        window: Option<u64>,
    ) -> Result<Vec<Cell>, LabError> {
        let set = Setting { bytes: COMMON, iterations: 1, lanes: 1, mtu: None, window };
        Ok(vec![self.common_cell(lab, row, |lab| {
            start_exchanges(lab, &tools.quinn, &set)?.run_times(Begins::WithALine, CUT_AFTER)
        })?])
    }

    /// Measures a peer, with the common size alone.
    fn peer(
        self,
        lab: &Lab,
        row: &Row,
        run: impl FnOnce(&Lab) -> Result<RunTimes, LabError>,
    ) -> Result<Vec<Cell>, LabError> {
        let before = lab.tcp_resent();
        let mut cell = self.common_cell(lab, row, run)?;
        let runs = cell.runs.max(1) as u64;
        let resent = lab.tcp_resent().zip(before).map(|(after, before)| after - before);
        cell.retransmitted_bytes = resent.map(|segments| segments * 1448 / runs);
        Ok(vec![cell])
    }

    /// Runs a contender that measures its own processor time, with the common size.
    fn common_cell(
        self,
        lab: &Lab,
        row: &Row,
        run: impl FnOnce(&Lab) -> Result<RunTimes, LabError>,
    ) -> Result<Cell, LabError> {
        let emulator = lab.emulator_meter();
        let times = run(lab)?;
        let emulator_share = emulator.map(|meter| meter.share());
        let cpu_seconds_per_gb = times.cpu_seconds_per_gb(COMMON);
        let cell = self.cell(lab, row, COMMON, times.seconds)?;
        Ok(Cell { cpu_seconds_per_gb, emulator_share, ..cell })
    }

    fn cell(self, lab: &Lab, row: &Row, bytes: u64, seconds: Vec<f64>) -> Result<Cell, LabError> {
        let bound = row.bound(self.operation, &row.shape().fabric(), bytes);
        let mut cell = Cell::new(&self.name(), lab.ground.name(), bytes, seconds, bound);
        cell.operation = self.operation.name();
        let seen = lab.seen()?;
        (cell.queue_bytes_peak, cell.void) = (seen.queue_bytes_peak, seen.void);
        Ok(cell)
    }
}

/// 0.2 s: the kernel counts processor time in hundredths of a second, so less is mostly rounding.
const CPU_SECONDS_MIN: f64 = 0.2;
