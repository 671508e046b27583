//! Whether delay, rate and round trip are those of the formulas.

use crate::site::{A, B, World};
use crate::spread::Spread;
use crate::udp;
use std::process::Output;
use std::time::Instant;
use wan_sim::FidelityReport;

/// Runs that are void are made again, this often at most.
const TRIES: usize = 4;

/// Base, plus queue over rate, plus the packet's own bits over rate.
pub fn delay() {
    println!(
        "| delay of the last of a burst on TUN | formula ms | measured ms | least off by (wanted: \
         1 %) |\n|---|---|---|---|"
    );
    for (rate, mbits, delay, base_ms, packets) in
        [("100mbit", 100.0, "20ms", 20.0, 400), ("500mbit", 500.0, "5ms", 5.0, 400)]
    {
        let words = format!("delay {delay} rate {rate} queue 5MB");
        let world = World::start(&words).expect("a lab");
        let (a, b) = (udp::socket(&world, "a", A), udp::socket(&world, "b", B));
        let formula = base_ms + f64::from(packets) * 1500.0 * 8.0 / (mbits * 1e3);
        let mut buffer = [0; 2000];
        let took = (0..20).map(|_| {
            let began = Instant::now();
            for _ in 0..packets {
                a.send_to(&[1; udp::PAYLOAD_BYTES], (B, 7000)).expect("sent");
            }
            for _ in 0..packets {
                b.recv_from(&mut buffer).expect("received");
            }
            began.elapsed().as_secs_f64() * 1e3
        });
        let took: Vec<_> = took.collect();
        let least = took.iter().copied().fold(f64::INFINITY, f64::min);
        let off = (least / formula - 1.0) * 100.0;
        println!(
            "| {rate}, {delay}, {packets} packets of 1,500 B, 20 bursts | {formula:.2} | {:.2} | \
             {off:.2} % |",
            Spread::new(took)
        );
    }
}

/// UDP, TCP after slow start, and the round trip of an idle link.
pub fn goodput() {
    println!(
        "| link, 20 ms one way | flow | theory Mbit/s | measured | off by | wanted | idle ping ms \
         (wanted: 40 to 41) | fidelity of the run |\n|---|---|---|---|---|---|---|---|"
    );
    for (rate, mbits) in [("200mbit", 200.0), ("1gbit", 1000.0), ("2gbit", 2000.0)] {
        let words = format!("delay 20ms rate {rate} queue 1bdp");
        row(&words, "UDP, GSO", (mbits * 1472.0 / 1500.0, 1.0), |world| {
            udp::goodput(world, mbits * 1.1, 5)
        });
        let most = if mbits > 1000.0 { 3.0 } else { 1.0 };
        row(&words, "TCP, CUBIC", (mbits * 1448.0 / 1500.0, most), |world| world.tcp(8, 4).0);
    }
}

fn row(
    words: &str,
    flow: &str,
    (theory, most_percent): (f64, f64),
    measure: impl Fn(&World) -> f64,
) {
    for attempt in 1..=TRIES {
        let world = World::start(words).expect("a lab");
        let ping = world.command("a", "ping").args(["-q", "-c", "20", "-i", "0.05", B]).output();
        let idle = round_trip_ms(&ping.expect("ping runs"));
        let measured = measure(&world);
        let report = world.fidelity().expect("a lab");
        let off = (measured / theory - 1.0) * 100.0;
        let good = off.abs() <= most_percent;
        if attempt == TRIES || (report.void.is_empty() && good) {
            println!(
                "| {words} | {flow} | {theory:.1} | {measured:.1} | {off:+.2} %{} | {most_percent} % \
                 | {idle} | try {attempt}: {} |",
                if good { "" } else { ", TOO FAR" },
                verdict(&report),
            );
            return;
        }
    }
}

/// Least, average and most, as ping prints them.
fn round_trip_ms(ping: &Output) -> String {
    let text = String::from_utf8_lossy(&ping.stdout);
    let values = text.lines().find_map(|line| line.split_once(" = ")).map(|(_, values)| values);
    let values: Vec<_> = values.unwrap_or_default().split('/').take(3).collect();
    values.join(" / ")
}

fn verdict(report: &FidelityReport) -> String {
    let late = report.lateness_p999.ns() as f64 / 1e6;
    let good = if report.void.is_empty() { "good" } else { "VOID" };
    let machine = report.machine_permille.unwrap_or_default() / 10;
    format!(
        "{good}, p99.9 {late:.2} ms late, CPU {} %, machine {machine} % busy",
        report.cpu_permille / 10
    )
}
