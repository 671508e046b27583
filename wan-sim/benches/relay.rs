//! How much of a direct UDP flow's speed the relay keeps: `cargo bench -p wan-sim`.
#![expect(clippy::disallowed_types, reason = "the ends of the relay are sockets")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures by the clock")]

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wan_sim::LinkSpec;
use wan_sim::relay::{Forward, Relay, RelaySpec};

const SEGMENT_BYTES: usize = 1400;
const SEGMENTS: usize = 44;
const WARM_UP: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_secs(2);

fn main() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    // Alternating, so that a busy spell of the machine meets both.
    let rounds: Vec<_> = (0..3).map(|_| (flow(&target, address), relayed(&target))).collect();
    for (direct, (relayed, verdict)) in &rounds {
        println!(
            "direct {direct:.2} Gbit/s, relayed {relayed:.2} Gbit/s, ratio {:.2}; {verdict}",
            relayed / direct
        );
    }
    let mut ratios: Vec<_> = rounds.iter().map(|(direct, (relay, _))| relay / direct).collect();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2} (wanted: at least 0.6)", ratios[1]);
}

fn relayed(target: &UdpSocket) -> (f64, String) {
    let link = LinkSpec::unlimited("20 ms".parse().unwrap()).unwrap();
    let forward =
        Forward { listen: "127.0.0.1:0".parse().unwrap(), target: target.local_addr().unwrap() };
    let spec = RelaySpec { forwards: vec![forward], forward: link, backward: link, seed: 1 };
    let relay = Relay::start(&spec).unwrap();
    let rate = flow(target, relay.listening()[0].address);
    (rate, relay.fidelity().to_string())
}

/// Floods `to` with offloaded buffers; what arrives at `target`, in Gbit/s of payload.
fn flow(target: &UdpSocket, to: SocketAddr) -> f64 {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let state = UdpSocketState::new((&socket).into()).unwrap();
            let contents = vec![7; SEGMENT_BYTES * SEGMENTS];
            let transmit = Transmit {
                destination: to,
                ecn: None,
                contents: &contents,
                segment_size: Some(SEGMENT_BYTES),
                src_ip: None,
            };
            while !ended.load(Ordering::Relaxed) {
                // A full buffer is part of a flood.
                let _ = state.try_send((&socket).into(), &transmit);
            }
        });
        let state = UdpSocketState::new(target.into()).unwrap();
        target.set_nonblocking(false).unwrap();
        let mut memory = vec![0; 32 * 65_536];
        let began = Instant::now();
        let mut bytes = 0;
        while began.elapsed() < WARM_UP + MEASURED {
            let mut metas = [RecvMeta::default(); 32];
            let mut buffers: Vec<_> = memory.chunks_mut(65_536).map(IoSliceMut::new).collect();
            let taken = state.recv(target.into(), &mut buffers, &mut metas).unwrap();
            if began.elapsed() > WARM_UP {
                bytes += metas.iter().take(taken).map(|meta| meta.len).sum::<usize>();
            }
        }
        ended.store(true, Ordering::Relaxed);
        bytes as f64 * 8.0 / MEASURED.as_secs_f64() / 1e9
    })
}
