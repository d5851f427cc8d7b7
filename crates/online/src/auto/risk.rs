//! What stores to copied pages are expected to cost.

/// On many a machine, a store that finds a page copied costs some thirty moves: copies that few loads pay for are dear
/// where they are stored to. One observation in ten says little of that beforehand, and what happened to the program's
/// other copies says much.
#[derive(Clone, Debug)]
pub(super) struct Risk {
    /// A store to a copied page.
    pub collapse_ns: f64,
    /// Copies made.
    pub copies: u64,
    /// Stores that took copies away.
    pub collapses: u64,
    /// Share of copies that are taken to be stored to before any has been made; counts as one copy.
    prior: f64,
}

impl Risk {
    pub fn new(collapse_ns: f64, prior: f64) -> Self {
        Self {
            collapse_ns,
            copies: 0,
            collapses: 0,
            prior,
        }
    }

    /// What a copy more is expected to cost, beyond the move that has paid for itself by then.
    pub fn expected_ns(&self, move_ns: f64) -> f64 {
        let share = (self.collapses as f64 + self.prior) / (self.copies as f64 + 1.0);
        share.min(1.0) * (self.collapse_ns - move_ns).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_show_what_is_to_be_expected_of_copies() {
        let mut risk = Risk::new(310_000.0, 0.1);
        assert_eq!(risk.expected_ns(10_000.0), 30_000.0);
        risk.copies = 4;
        assert_eq!(risk.expected_ns(10_000.0), 6_000.0);
        risk.collapses = 2;
        assert!((risk.expected_ns(10_000.0) - 126_000.0).abs() < 1e-6);
        risk.collapses = 9;
        assert_eq!(risk.expected_ns(10_000.0), 300_000.0, "one copy, one store");
        assert_eq!(risk.expected_ns(400_000.0), 0.0, "moves cost more");
    }
}
