//! ARS moves shared data alone.

use super::*;

/// Pages 0 and 1 are an array, page 2 is code, page 3 an object of one thread's.
struct Parts(MemoryTrace);

impl Trace for Parts {
    fn pages(&self) -> usize {
        4
    }

    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        match page {
            0 | 1 => Some((0, 2)),
            3 => Some((3, 1)),
            _ => None,
        }
    }

    fn is_data(&self, page: u32) -> bool {
        page != 2
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        self.0.threads()
    }
}

#[test]
fn only_objects_that_several_threads_use_are_dealt_out_and_moved() {
    let machine = machine(2, CLOCK);
    // Each page has a thread that misses on it, on the node that round-robin does not give it. Of the array each thread
    // uses a page alone.
    let user = |pages: &[u32]| {
        let misses = pages.iter().map(|&page| load(10, page));
        misses.collect::<Vec<_>>().repeat(300)
    };
    let touches = (0..4).map(|page| (0, 0, TraceEvent::FirstTouch(PageIndex(page))));
    let touches = touches.chain([(0, 0, TraceEvent::Signal { sequence: 1 })]);
    let parts = Parts(trace(
        4,
        vec![
            thread(0, 0, 0, batch(vec![], touches.collect())),
            thread(1, 4, 1, batch(user(&[0, 2]), vec![])),
            thread(2, 1, 1, batch(user(&[1, 2]), vec![])),
            thread(3, 5, 1, batch(user(&[3]), vec![])),
        ],
    ));
    let outcome = |policy: &str, settings: &[(&str, &str)]| {
        let mut job = job(policy, settings);
        job.initial = Some(nearpage_online::Initial::RoundRobin);
        simulate(&parts, &machine, &[job], 1)
            .expect("simulates")
            .remove(0)
    };
    let often = ("check_ns", "1000");
    // Round-robin has pages 0 and 2 on node 0, the others on node 1: all of the array is away from its users.
    let all = outcome("out-u-local", &[often]);
    assert!(all.migrated > 2, "the code, too: {}", all.migrated);
    let shared = outcome("out-u-local", &[often, ("pages", "shared")]);
    assert_eq!(shared.migrated, 2);
    // Pages 2 and 3 are on node 0, where they were first touched, and stay: of 1500 misses 300 of the code and all of the
    // third thread are remote for good.
    let still = outcome("round-robin", &[("pages", "shared")]);
    assert_eq!((still.migrated, still.remote()), (0, 300 + 300 + 300 + 300));
    assert!((600..700).contains(&shared.remote()), "{}", shared.remote());
    let parameter = ("pages", "shared".to_owned());
    assert!(shared.parameters.contains(&parameter) && !all.parameters.contains(&parameter));
}

#[test]
fn which_pages_are_placed_means_nothing_to_first_touch() {
    let refused = refusal("smile-4", job("first-touch", &[("pages", "shared")]));
    assert!(
        refused.starts_with("pages has no effect: first touch"),
        "{refused}"
    );
}
