//! `cargo xtask bench wan-sim`.

use crate::bench::bench_page::BenchPage;
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs;
use std::path::Path;

/// Each bench of the crate `wan-sim`, with the heading and text above its table.
const WAN_SIM_BENCHES: [(&str, &str); 3] = [
    (
        "virtual_time",
        "## Virtual time\n\nQUIC endpoints over the virtual network, on one thread; CUBIC \
         begins with a window of one BDP. Each run makes the same trace hash; `tests/virtual_time.rs` compares it between processes.",
    ),
    (
        "relay",
        "## Relay\n\nThree threads of one process: sender, relay, receiver. The direct flow has \
         two of these.",
    ),
    (
        "lab",
        "## Lab\n\nNamespaces with TUN devices; iperf3 and ping run unmodified. A run that its \
         fidelity report voids is made again, up to four times, whatever its figure, and the last counts. \
         Flows without a rate keep the emulator busy to its limit: their rounds are not made again, \
         and the void ones are counted.",
    ),
];

/// The section, in Markdown, of the result page of `wan-sim` on properties that tests check in
/// place of a bench.
const HELD_BY_TESTS_SECTION: &str = "
## Held by tests

| what | wanted | held by |
|---|---|---|
| delay in virtual time | within 0.1 % | `delay_is_base_plus_queue_plus_sending_time`: to the nanosecond |
| random impairments | n = 1e6, seeds 1 to 20, significance 1e-3, at most one failure | `wan-sim/tests/statistics.rs`, which also fails models that are wrong: `losing_whole_super_packets_is_found_out`, `a_queue_that_counts_packets_is_found_out`, `one_random_stream_for_all_is_found_out` |
| recordings | the same fates, byte for byte | `a_relays_recording_replays_in_the_core`, `a_stream_survives_all_impairments_and_its_recording_replays` |
| a starved pump | void | `a_starved_lab_says_that_the_run_is_void`, `a_lab_stopped_under_traffic_reports_a_void_run`, the same two for the relay |
| the same trace hash | in separate processes | `other_processes_make_the_same_trace`, `another_process_makes_the_same_trace` |
";

/// Runs `cargo xtask bench wan-sim`: the benches of the crate, whose tables fill the page.
pub(in crate::bench) fn measure_wan_sim_bench(root: &Path) -> Result<BenchPage, CommandFailure> {
    installed_programs::find_installed_programs(false);
    let mut text = String::from(
        "Figures are median (least to most). All that is compared alternates within one run, so \
         that a busy spell of the machine meets both; where the machine is busy with other work, \
         so say the fidelity reports.\n",
    );
    for (bench, what) in WAN_SIM_BENCHES {
        let arguments = ["bench", "--package", "wan-sim", "--all-features", "--bench", bench];
        let line = CommandLine::cargo(&arguments);
        let (status, stdout) = line.capture(root)?;
        if !status.success() {
            return Err(line.failure(&status));
        }
        text.push_str(&format!("\n{what}\n\n{}\n", stdout.trim()));
    }
    text.push_str(HELD_BY_TESTS_SECTION);
    Ok(BenchPage::new("wan-sim", text))
}
