// The minimum cut between a target and a source: which edges hold this flow back. Capacities are
// whole numbers, so the flow is exact; it is Dinic's algorithm on the layers below the target.
(function (attnflow) {
  "use strict";

  // capacities[m][i * n + j]: the edge from (m + 1, i) down to (m, j).
  function minimumCut({ capacities, length: n, unit }, layer, target, source) {
    const used = capacities.slice(0, layer).map((edges) => new Float64Array(edges.length));
    const start = layer * n + target;
    const end = source;
    const total = { flow: 0 };
    for (;;) {
      const level = levels(capacities, used, n, layer, start);
      if (level[end] < 0) return cutOf(capacities, n, layer, level, total.flow * unit, unit);
      const next = new Int32Array((layer + 1) * n);
      for (;;) {
        const sent = push(capacities, used, n, layer, level, next, start, end, Infinity);
        if (sent === 0) break;
        total.flow += sent;
      }
    }
  }

  // The neighbours of a node are numbered 0 to n - 1 for those below, n to 2n - 1 for those above.
  function room(capacities, used, n, layer, node, k) {
    const height = Math.floor(node / n);
    const place = node - height * n;
    if (k < n) return height === 0 ? 0 : capacities[height - 1][place * n + k] - used[height - 1][place * n + k];
    return height === layer ? 0 : used[height][(k - n) * n + place];
  }

  const neighbour = (n, node, k) =>
    k < n ? (Math.floor(node / n) - 1) * n + k : (Math.floor(node / n) + 1) * n + (k - n);

  function levels(capacities, used, n, layer, start) {
    const level = new Int32Array((layer + 1) * n).fill(-1);
    const queue = [start];
    level[start] = 0;
    for (let head = 0; head < queue.length; head++) {
      const node = queue[head];
      for (let k = 0; k < 2 * n; k++) {
        if (room(capacities, used, n, layer, node, k) <= 0) continue;
        const other = neighbour(n, node, k);
        if (level[other] >= 0) continue;
        level[other] = level[node] + 1;
        queue.push(other);
      }
    }
    return level;
  }

  function push(capacities, used, n, layer, level, next, node, end, limit) {
    if (node === end) return limit;
    for (; next[node] < 2 * n; next[node]++) {
      const k = next[node];
      const free = room(capacities, used, n, layer, node, k);
      if (free <= 0) continue;
      const other = neighbour(n, node, k);
      if (level[other] !== level[node] + 1) continue;
      const sent = push(capacities, used, n, layer, level, next, other, end, Math.min(limit, free));
      if (sent > 0) {
        const height = Math.floor(node / n);
        const place = node - height * n;
        if (k < n) used[height - 1][place * n + k] += sent;
        else used[height][(k - n) * n + place] -= sent;
        return sent;
      }
    }
    return 0;
  }

  // The edges from what the target still reaches to what it does not.
  function cutOf(capacities, n, layer, level, value, unit) {
    const edges = [];
    for (let m = 0; m < layer; m++) {
      for (let i = 0; i < n; i++) {
        if (level[(m + 1) * n + i] < 0) continue;
        for (let j = 0; j < n; j++) {
          const capacity = capacities[m][i * n + j];
          if (capacity > 0 && level[m * n + j] < 0) edges.push({ m, i, j, capacity: capacity * unit });
        }
      }
    }
    return { value, edges: edges.sort((a, b) => b.capacity - a.capacity) };
  }

  Object.assign(attnflow, { minimumCut });
})((globalThis.attnflow ??= {}));
