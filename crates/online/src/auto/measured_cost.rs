//! Cost of moving a page, estimated from the moves so far.
//!
//! The cost differs by a factor of hundreds: a huge page counts as one page, a slow machine copies slowly, and the
//! kernel waits for busy CPUs. So the initial estimate has the weight of only a few moves.

/// Weight of the initial estimate, in moves.
const PRIOR_MOVES: f64 = 4.0;

/// Mean cost of a move.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredCost {
    moves: f64,
    ns: f64,
}

impl MeasuredCost {
    /// `page_ns`: initial estimate.
    pub fn new(page_ns: f64) -> Self {
        Self {
            moves: PRIOR_MOVES,
            ns: PRIOR_MOVES * page_ns,
        }
    }

    /// Adds the measured time of moves; returns by how much it exceeds the estimate.
    pub fn take(&mut self, moves: u64, ns: u64) -> f64 {
        if moves == 0 {
            return 0.0;
        }
        let more_ns = (ns as f64 - moves as f64 * self.page_ns()).max(0.0);
        self.moves += moves as f64;
        self.ns += ns as f64;
        more_ns
    }

    /// Cost per page.
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
        // A cost like that of one or two huge pages.
        assert_eq!(cost.take(4, 4000), 3960.0);
        assert_eq!(cost.page_ns(), 505.0);
        assert_eq!(cost.take(392, 400_000 - 4040), 395_960.0 - 392.0 * 505.0);
        assert_eq!(cost.page_ns(), 1000.0);
    }
}
