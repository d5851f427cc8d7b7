//! Global decisions: which mechanisms are on for an application (§3.2.1, Figure 4).

use super::counters::{ApplicationCounters, Counters};
use super::parameters::CarrefourParameters;

/// Enabled mechanisms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mechanisms {
    /// Pages may be replicated.
    pub replication: bool,
    /// Pages may be interleaved.
    pub interleaving: bool,
    /// Pages may be co-located with the threads that use them.
    pub colocation: bool,
}

/// Does the application read enough for its pages to be replicated (step 2)?
pub fn loads_enough(application: &ApplicationCounters, parameters: &CarrefourParameters) -> bool {
    100.0 * application.read_share >= parameters.reads_percent as f64
}

/// The four steps; `None`: the application is not managed.
pub fn decide(
    counters: &Counters,
    application: &ApplicationCounters,
    parameters: &CarrefourParameters,
) -> Option<Mechanisms> {
    let percent = |share: f64| 100.0 * share;
    // Step 1.
    if application.maptu <= parameters.maptu as f64
        || percent(application.busy_share) < parameters.cpu_percent as f64
    {
        return None;
    }
    // Step 2: there is memory to replicate all resident pages, and few accesses are stores.
    let nodes = f64::from(counters.memory_nodes);
    let replication =
        counters.free_share >= 1.0 - 1.0 / nodes && loads_enough(application, parameters);
    Some(Mechanisms {
        replication: parameters.replication != 0 && replication,
        // Step 3.
        interleaving: parameters.interleaving != 0
            && percent(counters.imbalance) > parameters.imbalance_percent as f64,
        // Step 4.
        colocation: parameters.colocation != 0
            && percent(counters.local_share) < parameters.local_percent as f64,
    })
}

/// Which threshold of step 1 no application reaches, and the parameter that lowers the threshold.
pub fn why_unmanaged(
    applications: &[ApplicationCounters],
    parameters: &CarrefourParameters,
) -> Option<String> {
    let busiest = applications.iter().map(|application| application.maptu);
    let busiest = busiest.reduce(f64::max)?;
    let threshold = parameters.maptu;
    Some(match busiest > threshold as f64 {
        false => format!(
            "{busiest:.1} memory accesses a µs; carrefour manages programs with more than {threshold} (--set maptu=N)"
        ),
        true => format!(
            "CPU utilisation below {} % (--set cpu_percent=N)",
            parameters.cpu_percent
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unmanaged_application_is_told_its_threshold() {
        let parameters = CarrefourParameters::default();
        let quiet = ApplicationCounters {
            maptu: 16.04,
            ..ApplicationCounters::default()
        };
        let busy = ApplicationCounters {
            maptu: 60.0,
            ..quiet
        };
        let reason = why_unmanaged(&[quiet, ApplicationCounters::default()], &parameters);
        assert_eq!(
            reason.as_deref(),
            Some(
                "16.0 memory accesses a µs; carrefour manages programs with more than 50 (--set maptu=N)"
            )
        );
        let reason = why_unmanaged(&[busy], &parameters).unwrap();
        assert!(reason.contains("cpu_percent"), "{reason}");
        assert_eq!(why_unmanaged(&[], &parameters), None);
    }

    /// The decision with the given changes to values that are otherwise far beyond their thresholds.
    fn decided(change: impl Fn(&mut Counters, &mut ApplicationCounters)) -> Option<[bool; 3]> {
        let mut counters = Counters {
            imbalance: 1.0,
            local_share: 0.25,
            node_maptu: vec![100.0, 0.0, 0.0, 0.0],
            memory_nodes: 4,
            free_share: 0.9,
            applications: vec![],
        };
        let mut application = ApplicationCounters {
            maptu: 100.0,
            read_share: 1.0,
            busy_share: 1.0,
            nodes: 0b1111,
        };
        change(&mut counters, &mut application);
        let mechanisms = decide(&counters, &application, &CarrefourParameters::default())?;
        let Mechanisms {
            replication,
            interleaving,
            colocation,
        } = mechanisms;
        Some([replication, interleaving, colocation])
    }

    #[test]
    fn every_step_has_its_threshold() {
        let all = Some([true; 3]);
        assert_eq!(decided(|_, _| {}), all);
        assert_eq!(decided(|_, application| application.maptu = 50.0), None);
        assert_eq!(decided(|_, application| application.maptu = 50.1), all);
        let no_replication = Some([false, true, true]);
        assert_eq!(decided(|_, application| application.read_share = 0.95), all);
        assert_eq!(
            decided(|_, application| application.read_share = 0.949),
            no_replication
        );
        assert_eq!(decided(|counters, _| counters.free_share = 0.75), all);
        // Copies on the two nodes with memory need twice the memory, not four times.
        let on_two = decided(|counters, _| (counters.free_share, counters.memory_nodes) = (0.5, 2));
        assert_eq!(on_two, all);
        assert_eq!(
            decided(|counters, _| counters.free_share = 0.749),
            no_replication
        );
        let no_interleaving = Some([true, false, true]);
        assert_eq!(
            decided(|counters, _| counters.imbalance = 0.35),
            no_interleaving
        );
        assert_eq!(decided(|counters, _| counters.imbalance = 0.351), all);
        let no_colocation = Some([true, true, false]);
        assert_eq!(
            decided(|counters, _| counters.local_share = 0.8),
            no_colocation
        );
        assert_eq!(decided(|counters, _| counters.local_share = 0.799), all);
    }

    #[test]
    fn mechanisms_can_be_switched_off() {
        let counters = Counters {
            imbalance: 1.0,
            local_share: 0.0,
            node_maptu: vec![1.0; 4],
            memory_nodes: 4,
            free_share: 1.0,
            applications: vec![],
        };
        let application = ApplicationCounters {
            maptu: 51.0,
            read_share: 1.0,
            busy_share: 0.3,
            nodes: 1,
        };
        for (name, expected) in [
            ("replication", [false, true, true]),
            ("interleaving", [true, false, true]),
            ("colocation", [true, true, false]),
        ] {
            let mut parameters = CarrefourParameters::default();
            assert_eq!(parameters.set(name, "0"), Ok(true));
            let found = decide(&counters, &application, &parameters).expect("managed");
            assert_eq!(
                [found.replication, found.interleaving, found.colocation],
                expected
            );
        }
        let mut parameters = CarrefourParameters::default();
        assert_eq!(parameters.set("cpu_percent", "31"), Ok(true));
        assert_eq!(decide(&counters, &application, &parameters), None);
    }
}
