//! Converts virtual time to CLOCK_MONOTONIC, in which the lives of objects are given.
//!
//! Both times are known at the start of a frame and where a thread read the clock (the preload library does so before
//! it logs). Such moments of all threads of a process make its [`Clock`]: straight lines between the moments that never
//! go back, so that the actions of all threads have one order. A thread's own moments bound the result
//! ([`Clock::between`]). An action after a thread read the clock is never earlier than the time read, so an object that
//! the thread logged is alive when it is used.

/// A moment at which both times are known: virtual time in instructions, CLOCK_MONOTONIC in
/// nanoseconds.
pub(super) type Moment = (u64, u64);

/// Moments of one process; neither time ever falls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Clock {
    moments: Vec<Moment>,
}

impl Clock {
    /// Makes a clock from moments in any order. Of moments within `spacing` instructions, one is kept.
    pub(super) fn new(mut moments: Vec<Moment>, spacing: u64) -> Self {
        moments.sort_unstable();
        let mut kept: Vec<Moment> = Vec::new();
        let mut latest = 0;
        for (instructions, time_ns) in moments {
            latest = time_ns.max(latest);
            match kept.last_mut() {
                Some((last, last_ns)) if instructions == *last => *last_ns = latest,
                Some((last, _)) if instructions - *last < spacing => {}
                _ => kept.push((instructions, latest)),
            }
        }
        kept.shrink_to_fit();
        Self { moments: kept }
    }

    /// The moments that were kept.
    pub(super) fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Position at which a pass over times from `instructions` on begins.
    pub(super) fn seek(&self, instructions: u64) -> usize {
        let after = self
            .moments
            .partition_point(|(moment, _)| *moment <= instructions);
        after.saturating_sub(1)
    }

    /// The time at `instructions`, which must not be before moment number `since`. Advances `since`, so that a pass
    /// over ascending times needs no search.
    #[inline]
    pub(super) fn time_ns(&self, instructions: u64, since: &mut usize) -> u64 {
        while self
            .moments
            .get(*since + 1)
            .is_some_and(|(next, _)| *next <= instructions)
        {
            *since += 1;
        }
        let Some(&(from, from_ns)) = self.moments.get(*since) else {
            return 0;
        };
        let ahead = instructions.saturating_sub(from);
        let Some(&(to, to_ns)) = self.moments.get(*since + 1) else {
            return from_ns;
        };
        let share = ahead as f64 / (to - from) as f64;
        from_ns + (((to_ns - from_ns) as f64 * share) as u64).min(to_ns - from_ns)
    }

    /// Like [`Self::time_ns`], bounded by the thread's own moments before and after.
    #[inline]
    pub(super) fn between(
        &self,
        instructions: u64,
        since: &mut usize,
        own_before_ns: u64,
        own_after_ns: u64,
    ) -> u64 {
        self.time_ns(instructions, since)
            .min(own_after_ns)
            .max(own_before_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn straight_lines_between_moments() {
        let clock = Clock::new(vec![(400, 3000), (100, 1000), (200, 3000), (200, 3500)], 1);
        let at = |instructions| clock.time_ns(instructions, &mut 0);
        assert_eq!(at(50), 1000);
        assert_eq!(at(150), 2250);
        assert_eq!(at(200), 3500);
        assert_eq!(at(300), 3500);
        assert_eq!(at(9000), 3500);
        assert_eq!(clock.between(150, &mut 0, 2300, 2400), 2300);
        assert_eq!(clock.between(150, &mut 0, 1000, 2000), 2000);
    }

    proptest! {
        #[test]
        fn never_goes_back(
            moments in prop::collection::vec((0u64..50_000, 0u64..50_000), 0..60),
            spacing in 1u64..2000,
            mut asked in prop::collection::vec(0u64..60_000, 1..60),
        ) {
            let clock = Clock::new(moments.clone(), spacing);
            let reversed = Clock::new(moments.into_iter().rev().collect(), spacing);
            prop_assert_eq!(&clock, &reversed);
            asked.sort_unstable();
            let (mut since, mut last) = (clock.seek(asked[0]), 0);
            for at in asked {
                let found = clock.time_ns(at, &mut since);
                prop_assert_eq!(found, clock.time_ns(at, &mut 0));
                prop_assert!(found >= last);
                last = found;
            }
        }
    }
}
