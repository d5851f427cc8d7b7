use nearpage_attribution::{Attribution, Cell, ObjectGroup, ObjectName, Pattern};
use nearpage_machine::preset;
use nearpage_plan::{Decision, Owner, Placement};
use nearpage_recording::ThreadIndex;

use crate::making::Samples;
use crate::{Parameters, Planner, Policy};

/// Placement of a grid by `auto`, after `change` of its attribution. Four threads, one on each node, use a block each
/// of the grid, which the main thread filled.
fn decided(change: impl FnOnce(&mut Attribution)) -> Option<Placement> {
    decided_of("opteron-4", &[0, 1, 2, 3], change)
}

/// As [`decided`], with threads on other CPUs.
fn decided_of(
    machine: &str,
    cpus: &[u32],
    change: impl FnOnce(&mut Attribution),
) -> Option<Placement> {
    let decisions = all_decided_of(machine, cpus, change);
    decisions.first().map(|decision| decision.placement.clone())
}

/// As [`decided_of`], all decisions.
fn all_decided_of(
    machine: &str,
    cpus: &[u32],
    change: impl FnOnce(&mut Attribution),
) -> Vec<Decision> {
    let (mut analysis, _folder) = Samples::of(machine, cpus).analysed().into_parts();
    change(&mut analysis.attribution);
    let machine = preset(machine).unwrap();
    let planner = Planner::of(&analysis, &machine, None);
    let mut plans = planner.plans(Policy::Auto, &Parameters::default()).unwrap();
    plans.remove(0).decisions
}

fn is_block(placement: Option<&Placement>) -> bool {
    matches!(placement, Some(Placement::Block { .. }))
}

/// The costliest object.
fn grid(attribution: &mut Attribution) -> &mut ObjectGroup {
    let objects = attribution.objects.iter_mut();
    objects
        .max_by(|a, b| a.cost_ns().total_cmp(&b.cost_ns()))
        .unwrap()
}

/// The pattern of single pages that go round the four threads which use a block each of the grid.
fn pages_in_turn(group: &ObjectGroup) -> Pattern {
    let Pattern::Block { team, .. } = group.pattern else {
        panic!("{:?}", group.pattern);
    };
    let page_bytes = group.affinity.page_bytes;
    Pattern::BlockCyclic {
        team,
        block_bytes: page_bytes,
        period_bytes: 4 * page_bytes,
    }
}

/// Adds an object beside which the grid's decision hardly changes the time.
fn add_one_of_a_hundred_times_the_cost(attribution: &mut Attribution) {
    let group = grid(attribution);
    let mut other = group.clone();
    other.pattern = Pattern::Unknown;
    other.name = ObjectName::Other("stack".to_owned());
    for sums in [&mut other.loads, &mut other.stores] {
        sums.count *= 100.0;
        sums.cost_ns *= 100.0;
    }
    for cell in &mut other.affinity.cells {
        cell.loads *= 100.0;
        cell.stores *= 100.0;
        cell.cost_ns *= 100.0;
    }
    attribution.objects.push(other);
}

#[test]
fn a_block_that_loses_nothing_is_decided_for_whatever_part_of_the_time_it_is() {
    assert!(is_block(decided(|_| ()).as_ref()));
    let placed = decided(|attribution| {
        add_one_of_a_hundred_times_the_cost(attribution);
    });
    assert!(is_block(placed.as_ref()), "{placed:?}");
}

#[test]
fn one_heavy_sample_of_another_thread_does_not_change_the_decision() {
    let placed = decided(|attribution| {
        let cells = &mut grid(attribution).affinity.cells;
        let all: f64 = cells.iter().map(Cell::accesses).sum();
        // The main thread, which filled the grid, was sampled once in another thread's share.
        let main = cells[0].thread;
        let last = cells.last_mut().unwrap();
        last.thread = main;
        (last.loads, last.stores, last.samples) = (3.0 * all as f32, 0.0, 1.0);
    });
    assert!(is_block(placed.as_ref()), "{placed:?}");
}

/// Makes all threads read all of the grid; the main thread reads `by_main` times as much as each other thread.
fn read_by_all(attribution: &mut Attribution, by_main: f32) {
    let group = grid(attribution);
    group.pattern = Pattern::ReadShared;
    let threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
    let of_all = |cell: &Cell| {
        let each = threads.len() as f32;
        let mut cell = *cell;
        (cell.loads, cell.stores) = ((cell.loads + cell.stores) / each, 0.0);
        let of = |&thread: &ThreadIndex| Cell {
            thread,
            loads: cell.loads * if thread.0 == 0 { by_main } else { 1.0 },
            ..cell
        };
        threads.iter().map(of).collect::<Vec<_>>()
    };
    let cells = group.affinity.cells.iter().flat_map(of_all).collect();
    group.affinity.cells = cells;
}

#[test]
fn objects_that_all_threads_read_are_spread_if_on_one_node() {
    let placed = decided(|attribution| read_by_all(attribution, 1.0));
    assert!(
        matches!(placed, Some(Placement::Interleave { .. })),
        "{placed:?}"
    );
}

#[test]
fn a_thread_with_more_samples_by_chance_does_not_change_the_predicted_time() {
    let change = |by_main: f32, samples_a_cell: f32| {
        let analysed = Samples::of("amd48", &[0, 6, 12, 18]).analysed();
        let (mut analysis, _folder) = analysed.into_parts();
        read_by_all(&mut analysis.attribution, by_main);
        for cell in &mut grid(&mut analysis.attribution).affinity.cells {
            (cell.samples, cell.cost_ns) = (samples_a_cell, 100.0 * cell.loads);
        }
        let machine = preset("amd48").unwrap();
        let planner = Planner::of(&analysis, &machine, None);
        let decided = planner.decide(&[Policy::Interleave], &Parameters::default());
        let time = decided.unwrap().remove(0).time.unwrap();
        time.planned_ns / time.first_touch_ns - 1.0
    };
    // Of 25 samples a fifth more is chance, of 25,000 it is not. A thread has 64 cells.
    let [few, many] = [25.0 / 64.0, 25_000.0 / 64.0];
    let alike = change(1.0, few);
    let [by_chance, more] = [few, many].map(|samples| change(1.2, samples));
    assert!((by_chance - alike).abs() < 1e-3, "{by_chance} {alike}");
    assert!((more - alike).abs() > 1e-2, "{more} {alike}");
}

#[test]
fn rows_and_columns_in_turn_on_one_node_get_blocks_however_little_time_that_saves() {
    // `busy`: factor of the main thread's accesses.
    let of = |busy: f32| {
        decided(|attribution| {
            let group = grid(attribution);
            let columns = pages_in_turn(group);
            group.pattern = Pattern::InTurn(Box::new([group.pattern.clone(), columns]));
            let in_turn = |cell: &Cell| {
                let mut row = *cell;
                (row.loads, row.stores) = (cell.loads / 2.0, cell.stores / 2.0);
                let column = Cell {
                    thread: ThreadIndex(cell.page % 4),
                    ..row
                };
                [row, column]
            };
            let mut cells: Vec<Cell> = group.affinity.cells.iter().flat_map(in_turn).collect();
            for cell in cells.iter_mut().filter(|cell| cell.thread.0 == 0) {
                (cell.loads, cell.stores) = (busy * cell.loads, busy * cell.stores);
            }
            group.affinity.cells = cells;
            add_one_of_a_hundred_times_the_cost(attribution);
        })
    };
    let placed = of(1.0);
    assert!(is_block(placed.as_ref()), "{placed:?}");
    // The main thread, which has all pages near, makes nearly all accesses.
    assert!(!is_block(of(100.0).as_ref()));
}

#[test]
fn a_main_thread_that_looks_in_now_and_then_is_no_user() {
    let of = |by_main: f32| {
        let cpus = &[0, 0, 1, 2, 3];
        decided_of("opteron-4", cpus, |attribution| {
            read_by_all(attribution, by_main);
            add_one_of_a_hundred_times_the_cost(attribution);
        })
    };
    let placed = of(0.02);
    assert!(
        matches!(placed, Some(Placement::Interleave { .. })),
        "{placed:?}"
    );
    // Two of five users are on the grid's node.
    assert!(matches!(of(1.0), None | Some(Placement::FirstTouch)));
}

#[test]
fn objects_that_one_thread_writes_stay_near_the_writer() {
    let of = |writer: usize, stores_a_load: f32| {
        decided(|attribution| {
            read_by_all(attribution, 1.0);
            let group = grid(attribution);
            group.pattern = Pattern::Shared;
            let writer = group.threads[writer].0;
            for cell in &mut group.affinity.cells {
                if cell.thread == writer {
                    cell.stores = stores_a_load * cell.loads;
                }
            }
        })
    };
    // The main thread, which filled the grid, writes.
    assert_eq!(of(0, 1.0), None);
    let placed = of(1, 0.5);
    assert!(
        matches!(placed, Some(Placement::Interleave { .. })),
        "{placed:?}"
    );
}

#[test]
fn pages_of_no_rule_that_their_users_filled_are_left_though_few_of_their_faults_were_seen() {
    let placed = decided(|attribution| {
        let group = grid(attribution);
        group.pattern = Pattern::Mixed;
        let threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
        let user = |page: u32| threads[(page / 4 * 7919 % 101 % 4) as usize];
        for cell in &mut group.affinity.cells {
            cell.thread = user(cell.page);
        }
        group.affinity.initialisation.clear();
        let seen = (0..group.affinity.pages).step_by(5);
        group.first_touches = seen.map(|page| (page, user(page))).collect();
    });
    assert_eq!(placed, None);
}

#[test]
fn pages_that_threads_filled_in_turn_are_left_though_few_of_their_faults_were_seen() {
    let cyclic = |faults: &dyn Fn(u32, u32) -> u32| {
        decided(|attribution| {
            let group = grid(attribution);
            group.pattern = pages_in_turn(group);
            let mut threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
            threads.truncate(4);
            for cell in &mut group.affinity.cells {
                cell.thread = threads[cell.page as usize % 4];
            }
            group.affinity.initialisation.clear();
            let seen = (0..group.affinity.pages).step_by(5);
            let toucher = |page| threads[faults(page, 4) as usize];
            group.first_touches = seen.map(|page| (page, toucher(page))).collect();
        })
    };
    assert_eq!(cyclic(&|page, threads| page % threads), None);
    // One thread filled all of the grid.
    let placed = cyclic(&|_, _| 0);
    assert!(
        matches!(placed, Some(Placement::BlockCyclic { .. })),
        "{placed:?}"
    );
}

#[test]
fn what_the_main_thread_does_alone_may_outweigh_the_blocks_that_threads_filled() {
    let with_alone = |accesses: f32| {
        decided(|attribution| {
            let group = grid(attribution);
            let threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
            let main = threads[0];
            group.affinity.initialisation.clear();
            let owned = &group.affinity.cells;
            group.first_touches = owned.iter().map(|cell| (cell.page, cell.thread)).collect();
            let alone = |cell: &Cell| Cell {
                thread: main,
                loads: accesses * cell.loads,
                stores: accesses * cell.stores,
                cost_ns: accesses * cell.cost_ns,
                ..*cell
            };
            let mut cells: Vec<Cell> = owned
                .iter()
                .copied()
                .chain(owned.iter().map(alone))
                .collect();
            cells.sort_by_key(|cell| (cell.page, cell.thread));
            group.affinity.cells = cells;
            let blocks = group.pattern.clone();
            group.pattern = Pattern::InTurn(Box::new([Pattern::Private { thread: main }, blocks]));
        })
    };
    let placed = with_alone(1.0);
    assert!(matches!(placed, Some(Placement::Whole(_))), "{placed:?}");
    assert_eq!(with_alone(0.05), None);
}

/// Under first touch the array is near its thread only because the main thread, which filled it, has the same node.
#[test]
fn what_one_thread_uses_alone_is_placed_near_it_though_another_thread_of_its_node_filled_it() {
    // Beside the grid, an array that `worker` uses alone. Threads 0 and 1 are on the same node.
    let of = |worker: usize, has_grid: bool| {
        let decisions = all_decided_of("carrefour-a", &[0, 1, 4, 8], |attribution| {
            let mut private = grid(attribution).clone();
            let worker = private.threads[worker].0;
            // Another size is another object.
            private.size_bytes += private.affinity.page_bytes;
            private.threads.retain(|thread| thread.0 == worker);
            private.pattern = Pattern::Private { thread: worker };
            private
                .affinity
                .cells
                .iter_mut()
                .for_each(|cell| cell.thread = worker);
            if !has_grid {
                attribution.objects.clear();
            }
            attribution.objects.push(private);
        });
        let placements = decisions.into_iter().map(|one| one.placement);
        placements
            .filter(|one| !is_block(Some(one)))
            .collect::<Vec<_>>()
    };
    let near = |index: u32| {
        let team = "openmp".to_owned();
        Placement::Whole(Owner::Thread { team, index })
    };
    assert_eq!(of(1, true), [near(1)]);
    // Its own thread filled it, or nothing else is to be placed.
    assert_eq!(of(0, true), []);
    assert_eq!(of(1, false), []);
}
