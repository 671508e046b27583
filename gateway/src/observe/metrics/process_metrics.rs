//! The metrics of the process, under the names that all Prometheus clients give them.
//!
//! They are read at each scrape. One that cannot be read, as in a container without `/proc`, is
//! left out.

use super::exposition::encode_exposition_samples;
use super::metric_description::{DescribedMetric, MetricDescription};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fmt;

/// A metric of the process, and its reading.
struct ProcessMetric {
    metric: DescribedMetric,
    read: fn() -> Option<f64>,
}

/// Reads the metrics of the process at each scrape.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessCollector;

impl ProcessCollector {
    /// Iterates over the metrics that the collector writes.
    pub fn described() -> impl Iterator<Item = DescribedMetric> {
        PROCESS_METRICS.iter().map(|process| process.metric)
    }
}

impl Collector for ProcessCollector {
    /// Writes what can be read now.
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        PROCESS_METRICS.iter().try_for_each(|process| {
            let sample = (process.read)().map(|value| (Vec::new(), value));
            encode_exposition_samples(&mut encoder, &process.metric, sample.as_slice())
        })
    }
}

/// Describes a metric of this process: its kind, name, unit, meaning and advice.
const fn process_metric(
    kind: MetricType,
    [name, unit]: [&'static str; 2],
    [meaning, advice]: [&'static str; 2],
) -> DescribedMetric {
    DescribedMetric {
        description: MetricDescription { name, unit, labels: &[], meaning, advice },
        kind,
    }
}

/// The six metrics of the process, with the function that reads each at a scrape.
static PROCESS_METRICS: [ProcessMetric; 6] = [
    ProcessMetric {
        metric: process_metric(
            MetricType::Counter,
            ["process_cpu_seconds", "seconds"],
            [
                "Processor time of the process, in user and system mode",
                "Its rate is the number of cores in use. At the cores that it may use, lanes are \
                 limited by the processor: give it more, or lower the rate of its links",
            ],
        ),
        read: process_metric_cpu_seconds,
    },
    ProcessMetric {
        metric: process_metric(
            MetricType::Gauge,
            ["process_resident_memory_bytes", "bytes"],
            [
                "Memory of the process that is in RAM, with the arenas of trainers that it has read",
                "Compare it with `memory` of the region file and the limit of its container",
            ],
        ),
        read: process_metric_resident_bytes,
    },
    ProcessMetric {
        metric: process_metric(
            MetricType::Gauge,
            ["process_open_fds", ""],
            ["Open file descriptors", "Near `process_max_fds`, trainers and scrapers are refused"],
        ),
        read: process_metric_open_descriptors,
    },
    ProcessMetric {
        metric: process_metric(
            MetricType::Gauge,
            ["process_max_fds", ""],
            ["Most file descriptors that may be open", "Raise it by `LimitNOFILE=` of the service"],
        ),
        read: process_metric_descriptors_max,
    },
    ProcessMetric {
        metric: process_metric(
            MetricType::Gauge,
            ["process_start_time_seconds", "seconds"],
            [
                "Start of the process, in seconds since 1970-01-01 00:00 UTC",
                "A change is a restart: trainers recover by themselves. Look for its reason in the \
                 log of the service",
            ],
        ),
        read: process_metric_start_time,
    },
    ProcessMetric {
        metric: process_metric(
            MetricType::Gauge,
            ["process_threads", ""],
            ["Threads of the process", "Compare it with the limit on tasks of the service"],
        ),
        read: process_metric_threads,
    },
];

/// Returns the processor time of the process in seconds.
fn process_metric_cpu_seconds() -> Option<f64> {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// Returns the memory of the process that is in RAM, in bytes.
fn process_metric_resident_bytes() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages as f64 * rustix::param::page_size() as f64)
}

/// Returns the number of open descriptors, without the one that lists them.
fn process_metric_open_descriptors() -> Option<f64> {
    let listed = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(listed.saturating_sub(1) as f64)
}

/// Returns the most descriptors that may be open; `None` without a limit.
fn process_metric_descriptors_max() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(|most| most as f64)
}

/// Returns the start of the process in seconds since 1970.
fn process_metric_start_time() -> Option<f64> {
    let ticks: u64 = process_metric_stat_field(STAT_START_TIME)?;
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 =
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot as f64 + ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the number of threads of the process.
fn process_metric_threads() -> Option<f64> {
    process_metric_stat_field(STAT_THREADS).map(|threads| threads as f64)
}

/// Reads a number of `/proc/self/stat`; `index` counts fields from 0 behind the name of the
/// program, which may contain spaces.
fn process_metric_stat_field(index: usize) -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(index)?.parse().ok()
}

/// Field 17 of `/proc/self/stat`, counted from 0 behind the program's name: number of threads. It
/// is the 20th field in proc(5).
const STAT_THREADS: usize = 17;
/// Field 19 of `/proc/self/stat`, counted from 0 behind the program's name: start of the process,
/// in ticks since boot. It is the 22nd field in proc(5).
const STAT_START_TIME: usize = 19;
