//! ARS with shared data only.

use super::*;

/// Pages 0 and 1 are an array, page 2 is code, and page 3 is an object that one thread uses.
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
    // Each page has a thread that misses on it from the node to which round-robin does not assign it. The array's two
    // pages have one user each.
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
    // Round-robin puts pages 0 and 2 on node 0 and the others on node 1, so the whole array is remote to its users.
    let all = outcome("out-u-local", &[often]);
    assert!(all.migrated > 2, "the code, too: {}", all.migrated);
    let shared = outcome("out-u-local", &[often, ("pages", "shared")]);
    assert_eq!(shared.migrated, 2);
    // Pages 2 and 3 stay on node 0, where they were first touched. Of 1500 misses, 300 to the code and the third
    // thread's 300 stay remote.
    let still = outcome("round-robin", &[("pages", "shared")]);
    assert_eq!((still.migrated, still.remote()), (0, 300 + 300 + 300 + 300));
    assert!((600..700).contains(&shared.remote()), "{}", shared.remote());
    let parameter = ("pages", "shared".to_owned());
    assert!(shared.parameters.contains(&parameter) && !all.parameters.contains(&parameter));
}

#[test]
fn first_touch_refuses_the_pages_parameter() {
    let refused = refusal("smile-4", job("first-touch", &[("pages", "shared")]));
    assert!(
        refused.starts_with("pages has no effect: first touch"),
        "{refused}"
    );
}
