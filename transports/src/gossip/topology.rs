//! Which ranks are neighbours.

/// A graph over the members of a run, by their positions 0 … N−1. Every member has the same number of
/// neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topology {
    /// The previous and the next member; the last is next to the first.
    Ring,
    /// A grid of R rows whose edges meet, filled row by row: the members left, right, above and below. R is
    /// the largest divisor of N that is not above √N, so for a prime N the torus is a ring.
    Torus,
    /// All other members.
    Complete,
    /// The members 1, 2, 4, … places before and after, up to half the ring: at most 2·log₂N neighbours, and
    /// everybody within log₂N hops.
    ///
    /// # Source
    /// Ying, Yuan, Chen, Hu, Pan, Yin: Exponential Graph is Provably Efficient for Decentralized Deep
    /// Training (arXiv 2110.13363), the static graph, whose edges have a direction; here they lead both ways.
    Exponential,
}

impl Topology {
    /// The neighbours of `position` among `world` members, ascending.
    ///
    /// # Panics
    /// When `position` is not below `world`.
    pub fn neighbours(self, world: usize, position: usize) -> Vec<usize> {
        assert!(position < world, "position {position} of {world}");
        let mut neighbours = match self {
            Self::Ring => vec![(position + 1) % world, (position + world - 1) % world],
            Self::Torus => torus(world, position),
            Self::Complete => (0..world).collect(),
            Self::Exponential => exponential(world, position),
        };
        neighbours.sort_unstable();
        neighbours.dedup();
        neighbours.retain(|&neighbour| neighbour != position);
        neighbours
    }

    /// The entry of the mixing matrix for every edge, 1/(d + 1) for d neighbours; a member's own entry is the
    /// same. The matrix is symmetric and its rows add up to 1, so the mean of all models stays where it is.
    ///
    /// # Source
    /// Xiao, Boyd: Fast Linear Iterations for Distributed Averaging (2004), Metropolis weights, here with
    /// equal degrees.
    pub fn weight(self, world: usize) -> f32 {
        let degree = if world == 0 { 0 } else { self.neighbours(world, 0).len() };
        1.0 / (degree + 1) as f32
    }
}

fn torus(world: usize, position: usize) -> Vec<usize> {
    let rows = (1..=world.isqrt()).rev().find(|rows| world.is_multiple_of(*rows)).unwrap_or(1);
    let columns = world / rows;
    let (row, column) = (position / columns, position % columns);
    let at = |row: usize, column: usize| row % rows * columns + column % columns;
    vec![at(row, column + 1), at(row, column + columns - 1), at(row + 1, column), at(row + rows - 1, column)]
}

fn exponential(world: usize, position: usize) -> Vec<usize> {
    let hops = std::iter::successors(Some(1), |hop| Some(2 * hop)).take_while(|hop| 2 * hop <= world);
    hops.flat_map(|hop| [(position + hop) % world, (position + world - hop) % world]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Topology; 4] = [Topology::Ring, Topology::Torus, Topology::Complete, Topology::Exponential];

    #[test]
    fn small_graphs_are_as_drawn_by_hand() {
        assert_eq!(Topology::Ring.neighbours(5, 0), [1, 4]);
        assert_eq!(Topology::Ring.neighbours(2, 1), [0]);
        // 0 1 2
        // 3 4 5
        assert_eq!(Topology::Torus.neighbours(6, 4), [1, 3, 5]);
        // Three rows of three.
        assert_eq!(Topology::Torus.neighbours(9, 0), [1, 2, 3, 6]);
        assert_eq!(Topology::Torus.neighbours(7, 3), Topology::Ring.neighbours(7, 3));
        assert_eq!(Topology::Complete.neighbours(4, 2), [0, 1, 3]);
        assert_eq!(Topology::Exponential.neighbours(8, 0), [1, 2, 4, 6, 7]);
        assert_eq!(Topology::Exponential.neighbours(9, 8), [0, 1, 3, 4, 6, 7]);
        assert_eq!(Topology::Exponential.neighbours(3, 1), Topology::Ring.neighbours(3, 1));
        for topology in ALL {
            assert_eq!(topology.neighbours(1, 0), [0; 0]);
            assert_eq!(topology.weight(1), 1.0);
        }
    }

    #[test]
    fn neighbours_are_mutual_and_equally_many_and_everybody_is_reached() {
        for topology in ALL {
            for world in 1..=40 {
                let degree = topology.neighbours(world, 0).len();
                let mut reached = vec![false; world];
                let mut next = vec![0];
                while let Some(position) = next.pop() {
                    if std::mem::replace(&mut reached[position], true) {
                        continue;
                    }
                    let neighbours = topology.neighbours(world, position);
                    assert_eq!(neighbours.len(), degree, "{topology:?} of {world}");
                    for &neighbour in &neighbours {
                        assert!(topology.neighbours(world, neighbour).contains(&position));
                    }
                    next.extend(neighbours);
                }
                assert!(reached.iter().all(|&reached| reached), "{topology:?} of {world}");
            }
        }
    }
}
