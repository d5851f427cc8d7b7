//! Expected cost of stores to copied pages.

/// On many machines, a store to a copied page costs about thirty moves, so copies that few loads pay for are expensive
/// if stores follow. Sampling one reference in ten hardly shows whether a page will be stored to; the fate of the
/// program's other copies is a better indication.
#[derive(Clone, Debug)]
pub(super) struct Risk {
    /// Cost of a store to a copied page.
    pub collapse_ns: f64,
    /// Number of copies made.
    pub copies: u64,
    /// Number of stores that collapsed copies.
    pub collapses: u64,
    /// Assumed share of copies that are stored to; it has the weight of one copy.
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

    /// Expected cost of collapsing another copy, beyond the cost of the move.
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
