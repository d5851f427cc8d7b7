//! Activity of the machine in equal parts of the simulated time.

use crate::figures::FS;

/// Maximum number of parts. Beyond this number, pairs of parts are merged.
const PARTS_MAX: usize = 256;
/// Initial length of a part in femtoseconds: a microsecond.
const PART_MIN: u64 = 1_000 * FS as u64;

/// Counts of one part of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Misses to the own node's memory.
    pub local: u64,
    /// Misses to other nodes' memory.
    pub remote: u64,
    /// Pages migrated or interleaved.
    pub migrated: u64,
    /// Copies made, including fresh copies after a collapse.
    pub replicated: u64,
    /// Replicated pages that collapsed to one copy.
    pub collapsed: u64,
    /// Requests that each node's controller served.
    pub controller_load: Vec<u64>,
}

impl Part {
    fn each(&self) -> impl Iterator<Item = u64> {
        let figures = [
            self.local,
            self.remote,
            self.migrated,
            self.replicated,
            self.collapsed,
        ];
        figures
            .into_iter()
            .chain(self.controller_load.iter().copied())
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        [
            &mut self.local,
            &mut self.remote,
            &mut self.migrated,
            &mut self.replicated,
            &mut self.collapsed,
        ]
        .into_iter()
        .chain(&mut self.controller_load)
    }

    fn add(&mut self, other: &Self) {
        for (sum, more) in self.each_mut().zip(other.each()) {
            *sum += more;
        }
    }
}

/// Simulated time in equal parts, inside and outside of marked phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Length of each part, in femtoseconds.
    length: u64,
    /// Parts in order of time; the last part is incomplete.
    parts: Vec<Part>,
    /// Counts at the last update.
    before: Part,
}

impl Timeline {
    pub(crate) fn new(nodes: usize) -> Self {
        let none = Part {
            controller_load: vec![0; nodes],
            ..Part::default()
        };
        Self {
            length: PART_MIN,
            parts: vec![none.clone()],
            before: none,
        }
    }

    /// Length of each part, in nanoseconds.
    pub fn part_ns(&self) -> f64 {
        self.length as f64 / FS
    }

    /// Parts in order of time.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// End of the last part, in femtoseconds.
    pub(crate) fn next(&self) -> u64 {
        self.length.saturating_mul(self.parts.len() as u64)
    }

    /// Adds the counts since the last update to the last part. Events must come in order of time.
    pub(crate) fn take(&mut self, now: u64, counted: Part) {
        let last = self.parts.last_mut().expect("there is always one");
        let since = last.each_mut().zip(counted.each().zip(self.before.each()));
        for (sum, (after, before)) in since {
            *sum += after.saturating_sub(before);
        }
        self.before = counted;
        while now >= self.next() {
            let none = Part {
                controller_load: vec![0; self.before.controller_load.len()],
                ..Part::default()
            };
            self.parts.push(none);
            if self.parts.len() > PARTS_MAX {
                self.halve();
            }
        }
    }

    /// The counts restart at zero.
    pub(crate) fn restart(&mut self) {
        self.before.each_mut().for_each(|count| *count = 0);
    }

    fn halve(&mut self) {
        self.length *= 2;
        let pairs = self.parts.chunks(2).map(|pair| {
            let mut sum = pair[0].clone();
            pair[1..].iter().for_each(|second| sum.add(second));
            sum
        });
        self.parts = pairs.collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counted(local: u64, load: u64) -> Part {
        Part {
            local,
            controller_load: vec![0, load],
            ..Part::default()
        }
    }

    proptest! {
        /// Counts are kept in any duration, the number of parts is bounded, and each event is in its part.
        #[test]
        fn parts_add_up(steps in prop::collection::vec((0..3_000_000_000u64, 0..9u64), 1..400)) {
            let mut timeline = Timeline::new(2);
            let (mut now, mut sum) = (0u64, 0);
            let mut events = Vec::new();
            for (after, misses) in steps {
                now += after;
                // The replay does the same: it takes the counts of one part before events of the next.
                if now >= timeline.next() {
                    timeline.take(now, counted(sum, 2 * sum));
                }
                sum += misses;
                events.push((now, misses));
            }
            timeline.take(now, counted(sum, 2 * sum));
            prop_assert!(timeline.parts.len() <= PARTS_MAX);
            prop_assert!(now < timeline.next());
            let mut expected = vec![0; timeline.parts.len()];
            for (time, misses) in events {
                expected[(time / timeline.length) as usize] += misses;
            }
            let found: Vec<u64> = timeline.parts().iter().map(|part| part.local).collect();
            prop_assert_eq!(&found, &expected);
            prop_assert!(timeline.parts().iter().all(|part| part.controller_load[1] == 2 * part.local));
        }
    }
}
