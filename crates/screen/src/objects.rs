//! What was sampled of a process's mappings lately.

use nearpage_report::mappings::{Mapping, mapping_of};

use crate::model::{Model, PageSamples};

/// What was sampled of a mapping lately.
#[derive(Clone, Debug)]
pub struct Object {
    /// The mapping; `None`: of pages that are mapped no longer, or of a process that tells nothing.
    pub mapping: Option<Mapping>,
    /// Samples.
    pub samples: f32,
    /// Those from the node that the page is on.
    pub local: f32,
    /// By node of the CPU.
    pub by_node: Vec<f32>,
    /// Pages that were sampled, by the node that they are on.
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

    /// What it is called.
    pub fn name(&self) -> &str {
        self.mapping
            .as_ref()
            .map_or("no longer mapped", |mapping| &mapping.name)
    }
}

/// Objects of a process by their mappings, those with the most samples first.
pub fn objects(model: &Model, process: u16, mappings: &[Mapping]) -> Vec<Object> {
    let nodes = model.subject.nodes.len();
    let mut objects: Vec<Object> = Vec::new();
    // Pages come in order of address, and so do mappings.
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
