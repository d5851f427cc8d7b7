//! What moving a page costs, by the moves so far.
//!
//! It differs by a factor of hundreds: a huge page is one page, a slow machine copies slowly, and the kernel waits for
//! CPUs that are busy. So what is known beforehand counts as a few moves only.

/// Moves that what is known beforehand counts for.
const PRIOR_MOVES: f64 = 4.0;

/// Mean cost of a move.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredCost {
    moves: f64,
    ns: f64,
}

impl MeasuredCost {
    /// As it is known beforehand.
    pub fn new(page_ns: f64) -> Self {
        Self {
            moves: PRIOR_MOVES,
            ns: PRIOR_MOVES * page_ns,
        }
    }

    /// So many moves took so long; by how much more than they were taken to.
    pub fn take(&mut self, moves: u64, ns: u64) -> f64 {
        if moves == 0 {
            return 0.0;
        }
        let more_ns = (ns as f64 - moves as f64 * self.page_ns()).max(0.0);
        self.moves += moves as f64;
        self.ns += ns as f64;
        more_ns
    }

    /// Of a page.
    pub fn page_ns(&self) -> f64 {
        self.ns / self.moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_moves_say_more_than_what_is_known_beforehand() {
        let mut cost = MeasuredCost::new(10.0);
        assert_eq!(cost.take(0, 0), 0.0);
        assert_eq!(cost.page_ns(), 10.0);
        // A huge page or two.
        assert_eq!(cost.take(4, 4000), 3960.0);
        assert_eq!(cost.page_ns(), 505.0);
        assert_eq!(cost.take(392, 400_000 - 4040), 395_960.0 - 392.0 * 505.0);
        assert_eq!(cost.page_ns(), 1000.0);
    }
}
