//! Expected cost of stores to copied pages.

/// On many machines, a store to a copied page costs about thirty moves, so copies that few loads pay for are expensive
/// if stores follow. Sampling one reference in ten hardly shows whether a page will be stored to; the fate of the
/// program's other copies is a better indication. Copies made at one time tell nothing of each other, so no more are
/// made than have lasted, and all that do not last cost little.
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
    /// Number of copies that have lasted.
    lasted: u64,
    /// Number of copies made when the current period began.
    copies_before: u64,
    /// Epochs since then.
    epochs: u32,
}

/// A copy has lasted if it is there for one to two such periods: two to four milliseconds with `auto`'s epochs.
const PERIOD_EPOCHS: u32 = 8;

impl Risk {
    pub fn new(collapse_ns: f64, prior: f64) -> Self {
        Self {
            collapse_ns,
            copies: 0,
            collapses: 0,
            prior,
            lasted: 0,
            copies_before: 0,
            epochs: 0,
        }
    }

    /// True if another copy may be made, where a store to it costs more than the copy.
    pub fn allows_copy(&self, move_ns: f64) -> bool {
        let open = self.copies.saturating_sub(self.collapses + self.lasted);
        self.collapse_ns <= move_ns || open <= self.lasted
    }

    /// Notes the end of an epoch.
    pub fn end_epoch(&mut self) {
        self.epochs += 1;
        if self.epochs == PERIOD_EPOCHS {
            self.lasted = self.copies_before.saturating_sub(self.collapses);
            (self.copies_before, self.epochs) = (self.copies, 0);
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

    fn end_period(risk: &mut Risk) {
        (0..PERIOD_EPOCHS).for_each(|_| risk.end_epoch());
    }

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

    #[test]
    fn no_more_copies_are_open_than_have_lasted_but_for_one() {
        let mut risk = Risk::new(310_000.0, 0.1);
        let make_all = |risk: &mut Risk| {
            let mut made = 0;
            while risk.allows_copy(10_000.0) {
                risk.copies += 1;
                made += 1;
            }
            made
        };
        assert_eq!(make_all(&mut risk), 1);
        assert!(
            risk.allows_copy(310_000.0),
            "a store costs no more than the copy"
        );
        end_period(&mut risk);
        assert_eq!(make_all(&mut risk), 0, "the copy may be new");
        end_period(&mut risk);
        assert_eq!(make_all(&mut risk), 2);
        end_period(&mut risk);
        end_period(&mut risk);
        assert_eq!(make_all(&mut risk), 4);
        // What is stored to is no reason for more copies.
        risk.collapses = 7;
        end_period(&mut risk);
        end_period(&mut risk);
        assert_eq!(make_all(&mut risk), 1);
    }
}
