//! JSON of objects for the page, in addition to the report's JSON.

use nearpage_attribution::{Attribution, Names, ObjectGroup, Pattern};
use nearpage_recording::{ObjectKind, ThreadIndex};
use nearpage_report::{object_json, pattern_words};
use serde::Serialize;
use serde_json::{Value, json};

use crate::costs::CodePlace;
use crate::opened::{Opened, Stage};
use crate::picture::Frame;

/// Number of bins in the small picture of an object's pages.
const STRIP_BINS: u32 = 48;
/// Number of costliest objects of which all instances are sent; of other objects, the first instance is sent.
const OBJECTS_WITH_INSTANCES: usize = 100;
/// Maximum number of bins of the page × thread matrix.
const MATRIX_BINS_MAX: u32 = 1024;

/// Number of costliest objects that are sent completely. Other objects are sent as columns of a table, and completely
/// on request.
pub(crate) const OBJECTS_WHOLE: usize = 5000;

/// Columns of a table with the objects after [`OBJECTS_WHOLE`].
#[derive(Debug, Default, Serialize)]
pub(crate) struct ObjectColumns {
    /// Number in the whole recording; null if the object is not found there.
    number: Vec<Option<usize>>,
    name: Vec<String>,
    kind: Vec<ObjectKind>,
    cost_ns: Vec<f64>,
    loads: Vec<f64>,
    stores: Vec<f64>,
    remote: Vec<f64>,
    node_known: Vec<f64>,
    size_bytes: Vec<u64>,
    instances: Vec<u64>,
    threads: Vec<usize>,
    /// Function with the highest cost, and below, its file.
    function: Vec<String>,
    file: Vec<String>,
}

pub(crate) fn brief(opened: &Opened, stage: &Stage) -> ObjectColumns {
    let groups = &stage.attribution.objects;
    let names = Names::new(&opened.recording.tables, groups);
    let mut brief = ObjectColumns::default();
    for (position, group) in groups.iter().enumerate().skip(OBJECTS_WHOLE) {
        brief.number.push(stage.number(position));
        let hot = group.hot.first().map(|hot| (hot.module, hot.offset));
        let code = hot.map_or_else(CodePlace::default, |hot| opened.functions.code_place(hot));
        brief.name.push(names.of(group));
        brief.kind.push(group.kind);
        brief.cost_ns.push(group.cost_ns());
        brief.loads.push(group.loads.count.round());
        brief.stores.push(group.stores.count.round());
        let remote = group.loads.remote + group.stores.remote;
        brief.remote.push(remote.round());
        let known = group.loads.node_known + group.stores.node_known;
        brief.node_known.push(known.round());
        brief.size_bytes.push(group.size_bytes);
        brief.instances.push(group.instances);
        brief.threads.push(group.threads.len());
        brief.function.push(code.function);
        brief.file.push(code.file);
    }
    brief
}

/// Bin of a page, for `pages` pages in `bins` bins.
fn bin(page: u32, pages: u32, bins: u32) -> usize {
    (u64::from(page) * u64::from(bins) / u64::from(pages.max(1))) as usize
}

/// For each bin of an object's pages, the colour of the thread with the most accesses; −1 without accesses.
fn strip(opened: &Opened, group: &ObjectGroup) -> Vec<i32> {
    let pages = group.affinity.pages;
    let bins = STRIP_BINS.min(pages.max(1));
    let slots = opened.scale.threads;
    let mut sums = vec![0f32; bins as usize * slots];
    for cell in group.affinity.pattern_cells() {
        let slot = slot(opened, cell.thread);
        sums[bin(cell.page, pages, bins) * slots + slot] += cell.loads + cell.stores;
    }
    sums.chunks(slots)
        .map(|sums| {
            let most = sums.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            match most {
                Some((slot, sum)) if *sum > 0.0 => slot as i32,
                _ => -1,
            }
        })
        .collect()
}

fn slot(opened: &Opened, thread: ThreadIndex) -> usize {
    let slots = &opened.scale.thread_slots;
    slots
        .get(thread.0 as usize)
        .map_or(0, |&slot| usize::from(slot))
}

/// The costliest objects, in the report's order.
pub(crate) fn objects(opened: &Opened, stage: &Stage) -> Vec<Value> {
    let positions = 0..stage.attribution.objects.len().min(OBJECTS_WHOLE);
    let most = |position| match position < OBJECTS_WITH_INSTANCES {
        true => usize::MAX,
        false => 1,
    };
    positions
        .map(|position| shown(opened, stage, position, most(position)))
        .collect()
}

/// JSON for the pictures of an object, with at most `instances_max` of its instances.
fn shown(opened: &Opened, stage: &Stage, position: usize, instances_max: usize) -> Value {
    let attribution = &stage.attribution;
    let threads = &opened.recording.tables.threads;
    let group = &attribution.objects[position];
    json!({
        "number": stage.number(position),
        "kind": group.kind,
        "words": pattern_words(&group.pattern, &attribution.teams, threads),
        "pattern": pattern(attribution, &group.pattern),
        "strip": strip(opened, group),
        "page_bytes": group.affinity.page_bytes,
        "pages": group.affinity.pages,
        "instances": instances(opened, group, instances_max),
        "placeable": matches!(group.kind, ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping),
    })
}

/// JSON of one object: its row in the report, and the data for its pictures.
pub(crate) fn object_answer(opened: &Opened, stage: &Stage, position: usize) -> Option<String> {
    let attribution = &stage.attribution;
    let tables = &opened.recording.tables;
    let row = object_json(
        attribution,
        tables,
        position,
        &mut opened.recording.symbols(),
    )?;
    let shown = shown(opened, stage, position, usize::MAX);
    Some(format!("{{\"row\":{row},\"shown\":{shown}}}"))
}

/// Known instances of an object, with their places in the address space without gaps.
fn instances(opened: &Opened, group: &ObjectGroup, most: usize) -> Vec<Value> {
    let begin_ns = opened.scale.begin_ns;
    let objects = &opened.recording.tables.objects;
    let known = group
        .listed_instances
        .iter()
        .filter_map(|id| Some((id, objects.get(id.0 as usize)?)));
    known
        .take(most)
        .filter_map(|(id, object)| {
            let place = opened.space.place(object.pid, object.address)?;
            let died =
                (object.died_ns != u64::MAX).then(|| object.died_ns.saturating_sub(begin_ns));
            let of_this = group.uses.iter().filter(|one| one.object == *id);
            let user = of_this.max_by(|a, b| a.accesses.total_cmp(&b.accesses));
            Some(json!({
                "pid": object.pid,
                "address": format!("{:#x}", object.address),
                "place": place,
                "bytes": object.size_bytes,
                "page_offset": object.address % opened.recording.machine.page_bytes.max(1),
                "born_ns": object.born_ns.saturating_sub(begin_ns),
                "died_ns": died,
                "thread": object.thread,
                "user": user.map(|user| user.thread),
            }))
        })
        .collect()
}

/// Frame of the first instance, as the page first requests it.
pub(crate) fn instance_frame(opened: &Opened, group: &ObjectGroup) -> Option<Frame> {
    let objects = &opened.recording.tables.objects;
    let mut known = group
        .listed_instances
        .iter()
        .filter_map(|id| objects.get(id.0 as usize));
    let (object, place) = known.find_map(|object| {
        let place = opened.space.place(object.pid, object.address)?;
        Some((object, place))
    })?;
    let page_bytes = opened.recording.machine.page_bytes.max(1);
    let origin = place - object.address % page_bytes;
    let duration_ns = u64::from(opened.scale.ticks) * opened.scale.tick_ns;
    let since = |time_ns: u64| time_ns.saturating_sub(opened.scale.begin_ns);
    let whole = u64::from(group.affinity.pages.max(1)).saturating_mul(group.affinity.page_bytes);
    Some(Frame {
        place_from: origin,
        place_to: origin.saturating_add(whole),
        from_ns: since(object.born_ns).min(duration_ns - 1),
        to_ns: since(object.died_ns).min(duration_ns),
        columns: 1,
        rows: 1,
    })
}

/// JSON of a pattern, with the threads of its team.
fn pattern(attribution: &Attribution, pattern: &Pattern) -> Value {
    let dealt = |kind: &str, team: usize, block_bytes: u64| {
        let threads = attribution.teams.get(team).map(|team| &team.threads);
        json!({ "kind": kind, "block_bytes": block_bytes, "threads": threads })
    };
    match pattern {
        Pattern::Block { team, block_bytes } => dealt("block", *team, *block_bytes),
        Pattern::PartialBlock {
            team,
            block_bytes,
            part_bytes,
        } => {
            let mut value = dealt("partial-block", *team, *block_bytes);
            value["part_bytes"] = json!([part_bytes.start, part_bytes.end]);
            value
        }
        Pattern::BlockCyclic {
            team, block_bytes, ..
        } => dealt("block-cyclic", *team, *block_bytes),
        Pattern::Private { thread } => json!({ "kind": "private", "threads": [thread] }),
        _ => json!({ "kind": "none" }),
    }
}

/// JSON of the accesses to pages `from..to` of an object in at most `bins` bins: loads, stores and cost, each
/// `[thread][bin]`, for the threads that access the object.
pub(crate) fn matrix(group: &ObjectGroup, from: u32, to: u32, bins: u32) -> Value {
    let affinity = &group.affinity;
    let to = to.min(affinity.pages.max(1));
    let from = from.min(to - 1);
    let pages = to - from;
    let bins = bins.clamp(1, MATRIX_BINS_MAX).min(pages);
    let mut threads: Vec<u32> = group.threads.iter().map(|thread| thread.0.0).collect();
    threads.sort_unstable();
    let bin_count = bins as usize;
    let zero = || vec![0f32; threads.len() * bin_count];
    let (mut loads, mut stores, mut cost) = (zero(), zero(), zero());
    let all = affinity.cells.iter().chain(&affinity.initialisation);
    for cell in all.filter(|cell| (from..to).contains(&cell.page)) {
        let Ok(thread) = threads.binary_search(&cell.thread.0) else {
            continue;
        };
        let at = thread * bin_count + bin(cell.page - from, pages, bins);
        loads[at] += cell.loads;
        stores[at] += cell.stores;
        cost[at] += cell.cost_ns;
    }
    json!({
        "from": from, "to": to, "bins": bins, "page_bytes": affinity.page_bytes,
        "threads": threads, "loads": loads, "stores": stores, "cost_ns": cost,
        "first_touches": first_touches(group, from, to),
    })
}

/// Runs of consecutive pages that one thread touched first: first page, number of pages, thread.
fn first_touches(group: &ObjectGroup, from: u32, to: u32) -> Vec<(u32, u32, u32)> {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for &(page, thread) in &group.first_touches {
        if !(from..to).contains(&page) {
            continue;
        }
        match runs.last_mut() {
            Some((first, pages, last)) if *last == thread.0 && page <= *first + *pages + 1 => {
                *pages = page + 1 - *first;
            }
            _ => runs.push((page, 1, thread.0)),
        }
    }
    runs.truncate(4096);
    runs
}

/// Common accesses of threads, `[thread][thread]`: the sum over pages of the smaller number of the two threads'
/// accesses. The diagonal has all accesses of a thread.
pub(crate) fn sharing(attribution: &Attribution, threads: usize) -> Vec<Vec<f64>> {
    const THREADS_MAX: usize = 256;
    let threads = threads.min(THREADS_MAX);
    let mut shared = vec![vec![0f64; threads]; threads];
    for group in &attribution.objects {
        for page in group.affinity.cells.chunk_by(|a, b| a.page == b.page) {
            for (position, one) in page.iter().enumerate() {
                for other in &page[position..] {
                    let (a, b) = (one.thread.0 as usize, other.thread.0 as usize);
                    if a < threads && b < threads {
                        let common = (one.loads + one.stores).min(other.loads + other.stores);
                        shared[a][b] += f64::from(common);
                        if a != b {
                            shared[b][a] += f64::from(common);
                        }
                    }
                }
            }
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use nearpage_attribution::{Affinity, Cell, ObjectName};

    use super::*;

    fn cell(page: u32, thread: u32, loads: f32, stores: f32) -> Cell {
        Cell {
            page,
            thread: ThreadIndex(thread),
            loads,
            stores,
            samples: loads + stores,
            cost_ns: loads + stores,
        }
    }

    fn group(cells: Vec<Cell>, pages: u32) -> ObjectGroup {
        let mut threads: Vec<ThreadIndex> = cells.iter().map(|cell| cell.thread).collect();
        threads.sort();
        threads.dedup();
        ObjectGroup {
            kind: ObjectKind::Heap,
            name: ObjectName::Other("x".to_owned()),
            size_bytes: u64::from(pages) * 4096,
            instances: 1,
            listed_instances: vec![],
            loads: Default::default(),
            stores: Default::default(),
            threads: threads
                .iter()
                .map(|&thread| (thread, 0.0, 0.0, 0.0))
                .collect(),
            hot: vec![],
            affinity: Affinity {
                page_bytes: 4096,
                pages,
                cells,
                initialisation: vec![],
                sample_weight: 1.0,
            },
            first_touches: vec![
                (0, ThreadIndex(0)),
                (1, ThreadIndex(0)),
                (5, ThreadIndex(2)),
            ],
            touchers: vec![(ThreadIndex(0), 2), (ThreadIndex(2), 1)],
            uses: vec![],
            sibling: None,
            is_shared_memory: false,
            pattern: Pattern::Mixed,
        }
    }

    #[test]
    fn a_matrix_adds_up_pages_in_bins() {
        let group = group(
            vec![
                cell(0, 0, 1.0, 0.0),
                cell(1, 0, 2.0, 1.0),
                cell(5, 2, 0.0, 4.0),
            ],
            6,
        );
        let found = matrix(&group, 0, 6, 3);
        assert_eq!(found["threads"], json!([0, 2]));
        assert_eq!(found["loads"], json!([3.0, 0.0, 0.0, 0.0, 0.0, 0.0]));
        assert_eq!(found["stores"], json!([1.0, 0.0, 0.0, 0.0, 0.0, 4.0]));
        assert_eq!(found["first_touches"], json!([[0, 2, 0], [5, 1, 2]]));
        let page = matrix(&group, 5, 99, 1000);
        assert_eq!(
            (&page["bins"], &page["stores"]),
            (&json!(1), &json!([0.0, 4.0]))
        );
    }

    #[test]
    fn common_accesses_are_the_smaller_part() {
        let group = group(
            vec![
                cell(0, 0, 3.0, 0.0),
                cell(0, 1, 5.0, 0.0),
                cell(1, 1, 7.0, 0.0),
            ],
            2,
        );
        let attribution = Attribution {
            counts: Default::default(),
            totals: Default::default(),
            objects: vec![group],
            threads: vec![],
            teams: vec![],
            page_bytes: 4096,
        };
        assert_eq!(sharing(&attribution, 2), [[3.0, 3.0], [3.0, 12.0]]);
    }
}
