use super::*;
use proptest::prelude::*;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use units::{Span, TimeNs};

fn ns(ns: u64) -> TimeNs {
    TimeNs::from_ns(ns)
}

#[test]
fn time_stands_still_until_all_wait_and_then_jumps() {
    let time = VirtualExecutor::new();
    let (said, heard) = mpsc::channel();
    for (name, at) in [("late", 30), ("early", 10), ("also late", 30)] {
        let (time, said) = (time.clone(), said.clone());
        let sleeper = time.clone();
        time.spawn(async move {
            sleeper.sleep_until(ns(at)).await;
            said.send((name, sleeper.now().ns())).unwrap();
        });
    }
    let main = time.clone();
    let done = time.run(async move {
        main.sleep_until(ns(31)).await;
        main.now()
    });
    assert_eq!(done, Ok(ns(31)));
    // What is due at one time happens in the order in which it was set.
    let heard: Vec<_> = heard.try_iter().collect();
    assert_eq!(heard, [("early", 10), ("late", 30), ("also late", 30)]);
}

#[test]
fn a_future_that_nothing_can_end_is_an_error() {
    let time = VirtualExecutor::new();
    let waiting = time.clone();
    let stalled = time.run(async move {
        waiting.sleep_until(ns(7)).await;
        std::future::pending::<()>().await;
    });
    assert_eq!(stalled, Err(ExecutorStalled { at_ns: 7 }));
}

#[test]
fn a_wait_can_be_moved_and_given_up() {
    let time = VirtualExecutor::new();
    let main = time.clone();
    time.run(async move {
        let mut moved = pin!(main.sleep_until(ns(50)));
        let mut given_up = main.sleep_until(ns(60));
        std::future::poll_fn(|cx| {
            assert!(Future::poll(moved.as_mut(), cx).is_pending());
            assert!(Future::poll(Pin::new(&mut given_up), cx).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(given_up);
        assert_eq!(main.shared.clock.waiting_timers(), 1);
        moved.as_mut().get_mut().move_deadline(ns(20));
        moved.await;
        assert_eq!(main.now(), ns(20));
        assert_eq!(main.shared.clock.waiting_timers(), 0);
    })
    .unwrap();
}

#[test]
fn tasks_that_hold_the_clock_do_not_outlive_the_run() {
    let time = VirtualExecutor::new();
    let shared = Arc::downgrade(&time.shared);
    let held = time.clone();
    time.spawn(async move {
        held.sleep_until(ns(1000)).await;
    });
    time.run(async {}).unwrap();
    drop(time);
    assert!(shared.upgrade().is_none());
}

proptest! {
    #[test]
    fn every_wait_ends_at_its_time_and_in_order(spans in prop::collection::vec(0u64..1000, 1..50)) {
        let time = VirtualExecutor::new();
        let (said, heard) = mpsc::channel();
        for span in &spans {
            let (sleeper, said, span) = (time.clone(), said.clone(), Span::from_ns(*span));
            time.spawn(async move {
                for _ in 0..3 {
                    let at = sleeper.now() + span;
                    sleeper.sleep_until(at).await;
                    said.send((at, sleeper.now())).unwrap();
                }
            });
        }
        let main = time.clone();
        time.run(async move { main.sleep_until(ns(10_000)).await }).unwrap();
        let heard: Vec<_> = heard.try_iter().collect();
        prop_assert_eq!(heard.len(), spans.len() * 3);
        prop_assert!(heard.iter().all(|(wanted, was)| wanted == was));
        prop_assert!(heard.is_sorted_by_key(|(_, was)| *was));
    }
}
