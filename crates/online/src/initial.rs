//! Rules for the first home of a page.

/// A rule for the first home of a page. The static baselines of Verghese §6.2.1 (`first-touch`, `round-robin`) and of
/// Carrefour §3.1 (`interleave`) are these rules without a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initial {
    /// The node of the CPU that touches it first.
    #[default]
    FirstTouch,
    /// By page number, node after node.
    RoundRobin,
    /// In the order in which pages are touched, node after node.
    Interleave,
}

impl Initial {
    /// All rules.
    pub const ALL: [Self; 3] = [Self::FirstTouch, Self::RoundRobin, Self::Interleave];

    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::RoundRobin => "round-robin",
            Self::Interleave => "interleave",
        }
    }

    /// The rule with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.as_str() == name)
    }

    /// Home of a page. `page` is its number in its address space, `order` counts touched pages from 0, `toucher` is the
    /// node of the touching CPU, and `nodes` are the nodes with memory.
    pub fn home(self, page: u64, order: u64, toucher: u16, nodes: &[u16]) -> u16 {
        let turn = |number: u64| nodes[(number % nodes.len() as u64) as usize];
        match self {
            Self::FirstTouch => toucher,
            Self::RoundRobin => turn(page),
            Self::Interleave => turn(order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_home() {
        let nodes = [0, 2, 3];
        assert_eq!(Initial::FirstTouch.home(7, 4, 1, &nodes), 1);
        assert_eq!(Initial::RoundRobin.home(7, 5, 1, &nodes), 2);
        assert_eq!(Initial::Interleave.home(7, 5, 1, &nodes), 3);
        for rule in Initial::ALL {
            assert_eq!(Initial::from_name(rule.as_str()), Some(rule));
        }
    }
}
