//! Recent samples of a process, by mapping.

use nearpage_report::mappings::{Mapping, mapping_of};

use crate::model::{Model, PageSamples};

/// Recent samples of a mapping.
#[derive(Clone, Debug)]
pub struct Object {
    /// The mapping; `None` for pages that are no longer mapped, or if the process's mappings cannot be read.
    pub mapping: Option<Mapping>,
    /// Number of samples.
    pub samples: f32,
    /// Samples from CPUs of the page's node.
    pub local: f32,
    /// Samples by node of the CPU.
    pub by_node: Vec<f32>,
    /// Number of sampled pages on each node.
    pub pages: Vec<u64>,
}

impl Object {
    fn of(mapping: Option<Mapping>, nodes: usize) -> Self {
        Self {
            mapping,
            samples: 0.0,
            local: 0.0,
            by_node: vec![0.0; nodes],
            pages: vec![0; nodes],
        }
    }

    fn add(&mut self, page: &PageSamples) {
        self.samples += page.sum();
        self.local += page.local();
        for (sum, count) in self.by_node.iter_mut().zip(&page.by_node) {
            *sum += count;
        }
        if let Some(pages) = self.pages.get_mut(usize::from(page.home)) {
            *pages += 1;
        }
    }

    /// Display name of the object.
    pub fn name(&self) -> &str {
        self.mapping
            .as_ref()
            .map_or("no longer mapped", |mapping| &mapping.name)
    }
}

/// Objects of a process by mapping, ordered by samples.
pub fn objects(model: &Model, process: u16, mappings: &[Mapping]) -> Vec<Object> {
    let nodes = model.subject.nodes.len();
    let mut objects: Vec<Object> = Vec::new();
    // Both pages and mappings are ordered by address.
    for (address, page) in model.pages_of(process) {
        let mapping = mapping_of(mappings, address);
        let same = objects
            .last()
            .is_some_and(|object| object.mapping.as_ref() == mapping);
        if !same {
            objects.push(Object::of(mapping.cloned(), nodes));
        }
        if let Some(object) = objects.last_mut() {
            object.add(page);
        }
    }
    objects.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    objects
}
