//! Properties that hold for any trace: nothing is lost, and neither workers nor the order of unseen hits matter.

use proptest::prelude::*;

use super::*;
use crate::Flush;

/// Any trace of a few threads, with misses and events of all kinds.
pub(super) fn traces() -> impl Strategy<Value = MemoryTrace> {
    let miss = (
        0u32..2000,
        0u32..12,
        0u8..3,
        0u8..7,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(instructions, page, kind, served, tlb_miss, sampled)| Miss {
                instructions,
                page: PageIndex(page),
                offset: 0,
                kind: AccessKind::from_number(kind).expect("kind"),
                served: [
                    Served::L1,
                    Served::L2,
                    Served::L3,
                    Served::Memory,
                    Served::OtherCache,
                    Served::Upgrade,
                    Served::WriteBack,
                ][usize::from(served)],
                tlb_miss,
                sampled,
                depends_on: 0,
            },
        );
    let trace_event = prop_oneof![
        (0u32..12).prop_map(|page| TraceEvent::FirstTouch(PageIndex(page))),
        (1u64..12).prop_map(|sequence| TraceEvent::Signal { sequence }),
        (0u64..12, 0u64..100_000).prop_map(|(after, waited_instructions)| TraceEvent::Resume {
            after,
            waited_instructions
        }),
        (0u32..8).prop_map(|cpu| TraceEvent::Move(CpuId(cpu))),
    ];
    let batch = (
        prop::collection::vec(miss, 0..200),
        prop::collection::vec((0usize..200, 0u32..500, trace_event), 0..6),
    )
        .prop_map(|(misses, mut trace_events)| {
            trace_events
                .iter_mut()
                .for_each(|what| what.0 = what.0.min(misses.len()));
            trace_events.sort_by_key(|what| what.0);
            StepBatch {
                misses,
                trace_events,
            }
        });
    let one = (0u32..8, 0u64..4, prop::collection::vec(batch, 0..4));
    prop::collection::vec(one, 1..6).prop_map(|threads| {
        let threads = threads.into_iter().enumerate();
        let thread = |(number, (cpu, started_by, batches))| {
            self::thread(
                number as u32,
                cpu,
                if number == 0 { 0 } else { started_by },
                batches,
            )
        };
        trace(12, threads.map(thread).collect())
    })
}

fn jobs() -> Vec<Job> {
    let low = [
        ("trigger", "8"),
        ("hold", "2"),
        ("write", "3"),
        ("migrate", "2"),
    ];
    let mut jobs: Vec<Job> = ["first-touch", "round-robin", "interleave", "post-facto"]
        .map(|name| job(name, &[]))
        .to_vec();
    for name in ["migrate", "replicate", "migrate-replicate"] {
        jobs.push(job(name, &low));
    }
    // These are set directly, because one of the machines has no stepped costs and would refuse the options.
    let mut mapping = job(
        "migrate-replicate",
        &[&low[..], &[("memory_pages", "13")]].concat(),
    );
    mapping.options.flush = Flush::Mapping;
    let mut batches = job(
        "migrate-replicate",
        &[&low[..], &[("slice_ns", "3000")]].concat(),
    );
    batches.options.batch_pages = 2;
    jobs.extend([mapping, batches]);
    jobs.extend(policies::eager());
    jobs
}

/// A machine whose controllers, links and directories all queue requests.
pub(super) fn crowded() -> Machine {
    let mut machine = preset("flash-8-contended").expect("preset");
    machine.processor.outstanding_misses = Some(3);
    machine.memory.bandwidth_bytes_per_s = Some(5e8);
    for node in 1..8 {
        machine.links.push(nearpage_machine::Link {
            nodes: [
                nearpage_machine::NodeId(node - 1),
                nearpage_machine::NodeId(node),
            ],
            bandwidth_bytes_per_s: 4e8,
        });
    }
    machine
}

/// A wrapper of a trace that does not tell whether phases are marked.
struct InTurn<'a>(&'a MemoryTrace);

impl Trace for InTurn<'_> {
    fn pages(&self) -> usize {
        self.0.pages()
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        self.0.threads()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_and_workers_do_not_matter(trace in traces(), contended in any::<bool>()) {
        let machine = if contended { crowded() } else { preset("flash-8").expect("preset") };
        let jobs = jobs();
        let outcomes = simulate(&trace, &machine, &jobs, 1).expect("simulates");
        for workers in [2, 5] {
            prop_assert_eq!(&simulate(&trace, &machine, &jobs, workers).expect("simulates"), &outcomes);
        }
        let all = trace.threads.iter().flat_map(|thread| &thread.1).flat_map(|batch| &batch.misses);
        let demand = |miss: &&Miss| matches!(miss.served, Served::Memory | Served::OtherCache | Served::Upgrade);
        let misses = all.filter(demand).count() as u64;
        for outcome in &outcomes {
            prop_assert_eq!(outcome.misses, misses, "{}", outcome.policy);
            prop_assert_eq!(outcome.local + outcome.remote(), misses);
            let mut sum = 0;
            for thread in &outcome.threads {
                sum += thread.local + thread.remote;
                let parts = thread.split.total_ns();
                prop_assert!((thread.time_ns - parts).abs() <= 1e-9 * parts.max(1.0), "{:?}", thread);
                prop_assert!(thread.time_ns <= outcome.time_ns * (1.0 + 1e-12));
            }
            prop_assert_eq!(sum, misses);
            prop_assert!(outcome.pages_mean <= outcome.pages_max as f64 * (1.0 + 1e-12));
        }
    }

    /// Hits that a thread replays before its turn change nothing, under any policy and source of information.
    #[test]
    fn turns_of_unseen_hits_do_not_matter(trace in traces(), contended in any::<bool>()) {
        let machine = if contended { crowded() } else { preset("flash-8").expect("preset") };
        let mut jobs = jobs();
        for source in ["tlb", "sampled-cache", "loads", "clock"] {
            let settings = [("trigger", "8"), ("hold", "2"), ("every", "2"), ("source", source)];
            jobs.push(job("migrate-replicate", &settings));
        }
        for job in &mut jobs {
            job.options.movements_max = 10;
        }
        let in_turn = simulate(&InTurn(&trace), &machine, &jobs, 1).expect("simulates");
        prop_assert!(!trace.may_be_marked());
        prop_assert_eq!(&simulate(&trace, &machine, &jobs, 1).expect("simulates"), &in_turn);
    }

    #[test]
    fn post_facto_is_the_best_static_placement(
        misses in prop::collection::vec((0usize..3, 0u32..4), 1..40)
    ) {
        let machine = machine(3, CLOCK);
        let of = |node: usize| misses.iter().filter(move |miss| miss.0 == node).map(|miss| load(0, miss.1));
        let threads = (0..3).map(|node| {
            thread(node as u32, 4 * node as u32, 0, batch(of(node).collect(), vec![]))
        });
        let trace = trace(4, threads.collect());
        let stall = |job: Job| {
            let split = one(&trace, &machine, job).split;
            split.local_stall_ns + split.remote_stall_ns
        };
        let best = (0..81u32)
            .map(|code| {
                let homes = (0..4).map(|page| Some(Home::Node((code / 3u32.pow(page) % 3) as u16))).collect();
                stall(Job::new(SimulatedPolicy::Homes { name: "brute force".to_owned(), plan: PlanHomes { homes, ..PlanHomes::default() } }))
            })
            .fold(f64::INFINITY, f64::min);
        prop_assert_eq!(stall(job("post-facto", &[])), best);
    }
}
