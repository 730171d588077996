//! Circles in a graph, after R. Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput.
//! 1(2), 1972.

/// The strongly connected components of the graph whose node `i` leads to `edges[i]`, each after those that
/// it leads to.
pub(crate) fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        edges,
        reached: 0,
        order: vec![usize::MAX; edges.len()],
        lowest: vec![usize::MAX; edges.len()],
        open: Vec::new(),
        is_open: vec![false; edges.len()],
        components: Vec::new(),
    };
    for node in 0..edges.len() {
        if search.order[node] == usize::MAX {
            search.visit(node);
        }
    }
    search.components
}

struct Search<'a> {
    edges: &'a [Vec<usize>],
    reached: usize,
    /// When each node was reached.
    order: Vec<usize>,
    /// The first open node that each is known to lead to.
    lowest: Vec<usize>,
    open: Vec<usize>,
    is_open: Vec<bool>,
    components: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        self.order[node] = self.reached;
        self.lowest[node] = self.reached;
        self.reached += 1;
        self.open.push(node);
        self.is_open[node] = true;
        for &next in &self.edges[node] {
            if self.order[next] == usize::MAX {
                self.visit(next);
                self.lowest[node] = self.lowest[node].min(self.lowest[next]);
            } else if self.is_open[next] {
                self.lowest[node] = self.lowest[node].min(self.order[next]);
            }
        }
        if self.lowest[node] == self.order[node] {
            let first = self.open.iter().rposition(|open| *open == node).expect("the node is open");
            let mut component = self.open.split_off(first);
            component.iter().for_each(|node| self.is_open[*node] = false);
            component.sort_unstable();
            self.components.push(component);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_after_what_they_lead_to() {
        // 0 -> 1 <-> 2 -> 3, and 4 alone, which leads to itself.
        let edges = [vec![1], vec![2], vec![1, 3], vec![], vec![4]];
        assert_eq!(components(&edges), [vec![3], vec![1, 2], vec![0], vec![4]]);
    }
}
