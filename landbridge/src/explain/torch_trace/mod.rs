//! Flight recorders of gateways in the format of PyTorch's, one file for each rank.
//!
//! `landbridge dump --torch` writes the files, and PyTorch's `torchfrtrace` compares them. The client in
//! Python writes such files of its own rank.

mod pickle;

use super::dump::Dump;
use super::dump_view::DumpView;
use gateway::observe::status::{FlightBufferReport, FlightPostReport, FlightReport};
use hier_collectives::descriptor::{Dtype, Pattern};
use pickle::PickleValue;
use std::collections::BTreeSet;

/// The version of the format that PyTorch 2.15 writes.
const TRACE_VERSION: &str = "2.10";

/// The traces of the ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobTraces {
    /// The job's name.
    pub job: String,
    /// The rank of each trace, and the trace as a file.
    pub files: Vec<(u32, Vec<u8>)>,
    /// The ranks whose gateway gave no answer.
    pub ranks_without_file: Vec<u32>,
}

/// Returns the traces of all jobs of a dump, in name order: the collectives of each job's last epoch.
pub(crate) fn torch_traces(dump: &Dump) -> Vec<JobTraces> {
    let view = DumpView::of_dumps(std::slice::from_ref(dump));
    let flights = dump.gateways.iter().flat_map(|gateway| &gateway.flights);
    let jobs: BTreeSet<&str> = flights.map(|flights| &*flights.job).collect();
    jobs.into_iter().map(|job| job_traces(dump, &view, job)).collect()
}

/// Returns the traces of one job.
fn job_traces(dump: &Dump, view: &DumpView<'_>, job: &str) -> JobTraces {
    let away = regions_away(view);
    let present = dump.places.iter().filter(|place| !away.contains(&*place.region));
    let world: BTreeSet<u32> = present
        .flat_map(|place| place.first_rank..place.first_rank.saturating_add(place.ranks))
        .collect();
    let flights = dump.gateways.iter().flat_map(|gateway| &gateway.flights);
    let flights = flights.filter(|flights| flights.job == job);
    let epoch = flights.flat_map(|flights| &flights.collectives).map(|flight| flight.epoch).max();
    let (mut files, mut ranks_without_file) = (Vec::new(), Vec::new());
    for rank in &world {
        let place = view.place_of_rank(*rank);
        let answered = place.and_then(|place| view.gateway(&place.gateway));
        let Some(gateway) = answered.filter(|gateway| gateway.status.is_some()) else {
            ranks_without_file.push(*rank);
            continue;
        };
        let of_job = gateway.flights.iter().filter(|flights| flights.job == job);
        let last = of_job.flat_map(|flights| &flights.collectives);
        let last = last.filter(|flight| Some(flight.epoch) == epoch);
        let entry = |flight| torch_entry(flight, *rank, gateway.asked_unix_seconds);
        files.push((*rank, torch_trace(&world, last.filter_map(entry).collect())));
    }
    JobTraces { job: job.to_owned(), files, ranks_without_file }
}

/// Returns the regions without which the others go on, as the gateways say that go on.
fn regions_away<'a>(view: &DumpView<'a>) -> BTreeSet<&'a str> {
    let reports = view.statuses().filter_map(|status| status.membership.as_ref());
    let going_on = reports.filter(|report| !report.members.is_empty());
    going_on.flat_map(|report| report.away.iter().map(String::as_str)).collect()
}

/// Returns the trace of a rank as a file.
fn torch_trace(world: &BTreeSet<u32>, entries: Vec<PickleValue>) -> Vec<u8> {
    let ranks: Vec<String> = world.iter().map(u32::to_string).collect();
    let group = PickleValue::dictionary([
        ("name", PickleValue::text("0")),
        ("desc", PickleValue::text("landbridge")),
        ("ranks", PickleValue::Text(format!("[{}]", ranks.join(", ")))),
    ]);
    PickleValue::dictionary([
        ("version", PickleValue::text(TRACE_VERSION)),
        ("pg_config", PickleValue::dictionary([("0", group)])),
        ("pg_status", PickleValue::dictionary([])),
        ("entries", PickleValue::List(entries)),
    ])
    .to_pickle()
}

/// Returns the record of a rank's collective as PyTorch has it; `None` if the rank has not posted it, or
/// the gateway is of a version that recorded no buffers.
fn torch_entry(flight: &FlightReport, rank: u32, asked_unix_seconds: f64) -> Option<PickleValue> {
    let post = flight.posts.iter().find(|post| post.rank == rank)?;
    let buffer = post.differing.as_ref().or(flight.buffer.as_ref())?;
    let ns_at =
        |seconds_ago: f64| PickleValue::Integer(((asked_unix_seconds - seconds_ago) * 1e9) as i64);
    let number = || PickleValue::Integer(i64::try_from(flight.sequence).unwrap_or(i64::MAX));
    let completed = flight.end.as_ref().filter(|end| end.code.is_none());
    let ([input, output], dtype) = torch_sizes(buffer, post);
    let sizes = |size: &[u64]| PickleValue::List(vec![PickleValue::integers(size)]);
    let dtypes = || PickleValue::List(vec![PickleValue::text(&dtype)]);
    let group = [PickleValue::text("0"), PickleValue::text("landbridge")];
    Some(PickleValue::dictionary([
        ("frames", PickleValue::List(Vec::new())),
        // PyTorch drops what comes before the first record of any rank, so it counts for all ranks.
        ("record_id", number()),
        ("pg_id", PickleValue::Integer(0)),
        ("process_group", PickleValue::Pair(Box::new(group))),
        ("collective_seq_id", number()),
        ("p2p_seq_id", PickleValue::Integer(0)),
        ("op_id", number()),
        // PyTorch's tool knows this library.
        ("profiling_name", PickleValue::Text(format!("nccl:{}", torch_name(&buffer.operation)))),
        ("time_created_ns", ns_at(post.seconds_ago)),
        ("time_discovered_started_ns", PickleValue::None),
        (
            "time_discovered_completed_ns",
            completed.map_or(PickleValue::None, |end| ns_at(end.seconds_ago)),
        ),
        ("input_sizes", sizes(&input)),
        ("input_dtypes", dtypes()),
        ("output_sizes", sizes(&output)),
        ("output_dtypes", dtypes()),
        ("state", PickleValue::text(if completed.is_some() { "completed" } else { "scheduled" })),
        ("is_p2p", PickleValue::Bool(false)),
        ("retired", PickleValue::Bool(flight.end.is_some())),
    ]))
}

/// Returns the name of an operation in PyTorch, which has others for blocks of any length.
fn torch_name(operation: &str) -> String {
    match operation {
        name if name == Pattern::AllGather.name() => "all_gather_v".to_owned(),
        name if name == Pattern::ReduceScatter.name() => "reduce_scatter_v".to_owned(),
        other => other.replace('-', "_"),
    }
}

/// Returns the sizes of contribution and result on which ranks have to agree, and the element type.
fn torch_sizes(buffer: &FlightBufferReport, post: &FlightPostReport) -> ([Vec<u64>; 2], String) {
    if buffer.operation == Pattern::AllToAll.name() {
        // PyTorch compares the sums of what all ranks send and receive.
        return ([vec![post.contribution_bytes], vec![post.result_bytes]], "Byte".to_owned());
    }
    ([buffer.shape.clone(), buffer.shape.clone()], torch_dtype(&buffer.dtype))
}

/// Returns the name of an element type in PyTorch.
fn torch_dtype(name: &str) -> String {
    let Ok(dtype) = name.parse::<Dtype>() else { return name.to_owned() };
    let known = match dtype {
        Dtype::F32 => "Float",
        Dtype::F64 => "Double",
        Dtype::F16 => "Half",
        Dtype::Bf16 => "BFloat16",
        Dtype::I32 => "Int",
        Dtype::I64 => "Long",
        Dtype::U8 => "Byte",
        Dtype::I8 => "Char",
        Dtype::I16 => "Short",
        Dtype::U16 => "UInt16",
        Dtype::U32 => "UInt32",
        Dtype::U64 => "UInt64",
        Dtype::Bool => "Bool",
    };
    known.to_owned()
}
