//! Whether delay, rate and round trip are those of the formulas.

use crate::site::{A, B, World};
use crate::spread::Spread;
use crate::udp;
use crate::verdict::{tried, verdict};
use std::process::Output;
use std::time::{Duration, Instant};

/// 20 bursts of packets: the number over which a link's delay is measured.
const BURSTS: usize = 20;
/// 5 s: the longest wait for the packets of one burst, of which some may be lost.
const BURST_PATIENCE: Duration = Duration::from_secs(5);

/// Compares the delay of a burst with the formula: base delay, queue over rate, and the last
/// packet's bits over rate.
pub fn delay() {
    println!(
        "| delay of the last of a burst on TUN, {BURSTS} bursts | formula ms | measured ms | least \
         off by | median off by | wanted | | fidelity of the run |\n|---|---|---|---|---|---|---|---|"
    );
    for (rate, mbits, delay, base_ms, packets) in [
        ("100mbit", 100.0, "20ms", 20.0, 400),
        ("500mbit", 500.0, "5ms", 5.0, 400),
        ("1gbit", 1000.0, "20ms", 20.0, 2000),
    ] {
        let words = format!("delay {delay} rate {rate} queue 5MB");
        let formula = base_ms + f64::from(packets) * 1500.0 * 8.0 / (mbits * 1e3);
        let tried = tried(|| {
            let world = World::start(&words).expect("a lab");
            let took = bursts(&world, packets);
            (took, world.fidelity().expect("a lab"))
        });
        let took = Spread::new(tried.value.iter().copied());
        let off = |ms: f64| (ms / formula - 1.0) * 100.0;
        println!(
            "| {rate}, {delay}, {packets} packets of 1,500 B | {formula:.2} | {took:.2} | {:+.2} % | \
             {:+.2} % | 1 % | {} | {} |",
            off(took.least()),
            off(took.median()),
            tried.verdict(off(took.median()).abs() <= 1.0),
            tried.run(),
        );
    }
}

/// Returns the milliseconds from the first packet sent to the last received, for each burst.
fn bursts(world: &World, packets: u32) -> Vec<f64> {
    let (a, b) = (udp::socket(world, "a", A), udp::socket(world, "b", B));
    let mut buffer = [0; 2000];
    // A delay of the sender is no delay of the link.
    let _ = rustix::process::setpriority_process(None, -20);
    let ready = udp::Burst::of(&a, packets);
    // The time that a sleeping receiver takes to wake is none of the link either.
    b.set_nonblocking(true).expect("set");
    let burst = |_| {
        let began = Instant::now();
        ready.send();
        let mut received = 0;
        while received < packets && began.elapsed() < BURST_PATIENCE {
            received += u32::from(b.recv_from(&mut buffer).is_ok());
        }
        assert_eq!(received, packets, "received within {BURST_PATIENCE:?}");
        began.elapsed().as_secs_f64() * 1e3
    };
    (0..BURSTS).map(burst).collect()
}

/// Compares the goodput of UDP, of TCP after slow start, and the round trip of an idle link with
/// the formulas.
pub fn goodput() {
    println!(
        "| link, 20 ms one way | flow | theory Mbit/s | measured | off by | wanted | | idle ping ms \
         | wanted, on average | | fidelity of the run |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for (rate, mbits) in [("200mbit", 200.0), ("1gbit", 1000.0), ("2gbit", 2000.0)] {
        let words = format!("delay 20ms rate {rate} queue 1bdp");
        row(&words, "UDP, GSO", mbits * 1472.0 / 1500.0, 1.0, |world| {
            udp::goodput(world, mbits * 1.1, 5)
        });
        let most = if mbits > 1000.0 { 3.0 } else { 1.0 };
        row(&words, "TCP, CUBIC", mbits * 1448.0 / 1500.0, most, |world| world.tcp(8, 4).0);
    }
}

fn row(words: &str, flow: &str, theory: f64, most_percent: f64, measure: impl Fn(&World) -> f64) {
    let tried = tried(|| {
        let world = World::start(words).expect("a lab");
        let ping = world.command("a", "ping").args(["-q", "-c", "20", "-i", "0.05", B]).output();
        let idle = round_trip_ms(&ping.expect("ping runs"));
        let measured = measure(&world);
        ((idle, measured), world.fidelity().expect("a lab"))
    });
    let ([least, average, most], measured) = tried.value;
    let off = (measured / theory - 1.0) * 100.0;
    println!(
        "| {words} | {flow} | {theory:.1} | {measured:.1} | {off:+.2} % | {most_percent} % | {} | \
         {least:.3} / {average:.3} / {most:.3} | 40 to 41 | {} | {} |",
        tried.verdict(off.abs() <= most_percent),
        verdict((40.0..=41.0).contains(&average)),
        tried.run(),
    );
}

/// Parses the least, average and greatest round trip in ms from the output of ping.
fn round_trip_ms(ping: &Output) -> [f64; 3] {
    let text = String::from_utf8_lossy(&ping.stdout);
    let values = text.lines().find_map(|line| line.split_once(" = ")).map(|(_, values)| values);
    let mut values = values.unwrap_or_default().split('/').map(|value| value.parse().ok());
    std::array::from_fn(|_| values.next().flatten().unwrap_or(f64::NAN))
}
