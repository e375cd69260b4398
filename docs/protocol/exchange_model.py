#!/usr/bin/env python3
"""An explicit-state model of the membership protocol in docs/protocol.md. It visits every interleaving of small worlds.

  exchange_model.py worlds [FLAG=VALUE ...]      visits all worlds; prints states, seconds and verdicts (about 10 minutes)
  exchange_model.py mutations                    breaks one rule at a time; each broken rule must be found
  exchange_model.py walks [FLAG=VALUE ...]       walks at random for 40 s in each world that is too large to visit whole
  exchange_model.py one WORLD [FLAG=VALUE ...]   visits one world; prints the shortest trace to each kind of violation

The flags and their defaults are in World.__init__; the defaults are the rules of docs/protocol.md. Three of them matter most:
free_at=result, plan_by=min and deal_when=work. `worlds deal_when=take` checks lanes that are dealt ahead, when a result is
taken; the worlds with a delayed sum always deal so. The process exits with 1 if a world has a violation or a mutation has none.

What is abstract. A sum is one event per member: after all members of a view have entered exchange e there, each of them may
complete it, or hear of a loss first. A gather is treated alike: a member ends settling after all members of the view stand in
it and, if it needs a result or a shared state, after the sender has gathered. A message that was sent by a worker that has
died or left may still arrive. The coordinator's orders form one log; each worker hears a prefix of it, with any delay. Words
to the coordinator have any delay too. A paused worker is one that the coordinator puts out although it lives: it continues
until it hears of that.
"""
import sys, time
from collections import namedtuple, deque

# A worker. st: up, wait (a newcomer that is not in force), dead, out (put out), gone (left). heard: the number of orders heard.
# cur: the view in which it stands; ok: it has settled there (false: the view is closed, or settling). chain[e-1]: the view in
# which its Result(e) was made, so len(chain) exchanges are completed. inp: Input(completed + 1) = (samples, tail). mine: samples
# that are computed and not entered (the steps of an open round; with a delayed sum, the next gradient). lanes[worker], done: the
# ledger. comp: samples that it computed. base: the agreed members (rule 9). steps: computing steps, each of which deals once.
M = namedtuple('M', 'st heard cur ok chain inp mine lanes done comp base steps')
# The world. orders: ('loss' | 'plan' | 'start', members) or ('go', index of the plan). ex: entries {(view, e, worker, samples,
# tail)}. stand: {(view, worker, chain, is newcomer, (lanes, done, base, steps))}. said, know: Settled(view) said, and heard by the
# coordinator. off: workers that the coordinator holds for lost. lines: journal lines (e, view). left: faults that are left
# (crashes, wrong put-outs).
S = namedtuple('S', 'ms orders ex stand said know off lines left')

class Violation(Exception): pass
def need(cond, kind, *why):
    if not cond: raise Violation(kind + ': ' + ' '.join(map(str, why)))

class World:
    def __init__(w, n=3, new=0, leave=(), samples=4, per=1, delayed=False, crashes=1, wrong=0, depth=1, least=0, steps=1, **flags):
        w.n, w.new, w.leave, w.N, w.per, w.delayed, w.depth, w.least = n, new, set(leave), samples, per, delayed, depth, least
        w.crashes, w.wrong, w.ids, w.all, w.steps = crashes, wrong, range(n + new), frozenset(range(samples)), steps
        w.f = dict(
            free_at='result',     # rule 6: a result frees the lanes of its non-contributors | 'settle': settling a loss frees them
            plan_by='min',        # rule 7: a result names the newest plan that all contributors had heard of | 'max': that any had
            wait_to_hear=False,   # needed with plan_by='max': a member boards a named plan only after it has heard of it
            deal_when='work',     # rule 9: each computing step deals a position to each agreed member | 'take': each result tops up
            go=True,              # rule 7: a planned view is in force by Go | False: by settling
            first_holders=True,   # rule 7: the members of the first view are holders from the start
            holder_in_plan=True,  # rule 7: a planned view keeps a member of the view in force
            void='order',         # rule 7: a loss before Go voids a plan | 'never'
            least_by='result',    # rule 8: the minimum is judged by the last result's contributors | 'view': by the view heard of
            start_over=True,      # rule 8: waiting workers start over when no holder lives
            start_line=True,      # rule 12: the journal has a line StartedOver
            deal_at='result',     # rule 6: nothing is dealt in settling | 'settle': a settled loss is dealt at once
            line_by='any',        # rule 12: the first member that has a result makes its line | 'lowest': the lowest contributor
            digest='chain',       # rule 13: members compare results when they settle | 'ledger': ledgers as they stand
            free_first=False, new_in_loss=False, read_by_view=False, keep_input=False, least_mid=False, shares_by_view=False,
            start_keeps=False,
            compute_first=False)  # a delayed sum: the next gradient is computed before the sum's result is taken; deal_when='work' needs it
        if delayed: w.f['deal_when'] = 'take'
        assert set(flags) <= set(w.f), flags
        w.f.update(flags)

    # ---- what follows from the log and from results ----
    def members(w, s, v): return s.orders[v][1]
    def result(w, s, e, v):                       # rule 4: contributors, their samples and tails
        got = {x[2]: (x[3], x[4]) for x in s.ex if x[0] == v and x[1] == e}
        return {m: got[m] for m in w.members(s, v)}
    def tail_plan(w, s, m, e):                    # the plan that m's Result(e) names, or -1
        if e == 0: return -1
        tails = [tail for _, tail in w.result(s, e, m.chain[e-1]).values()]
        return min(tails) if w.f['plan_by'] == 'min' else max(tails)
    def is_void(w, orders, p):                    # a plan is void when a loss comes before its Go
        if w.f['void'] == 'never': return False
        for i in range(p + 1, len(orders)):
            if orders[i][0] in ('loss', 'start'): return True
            if orders[i] == ('go', p): return True   # over: in force, no longer to be boarded
        return False
    def plan_due(w, s, m):                        # rule 7: the plan to enter at this member's next boundary, or -1
        heard, e = s.orders[:m.heard], len(m.chain)
        p = w.tail_plan(s, m, e)
        if w.f['void'] == 'never': return p if not any(x[:1] == (p,) and x[2] == m.chain for x in s.stand if s.ms[x[1]] is m) else -1
        if p <= m.cur or (p < m.heard and w.is_void(heard, p)): p = -1
        if p < 0 and w.waits_for_more(s, m):
            ps = [i for i, o in enumerate(heard) if o[0] == 'plan' and i > m.cur and not w.is_void(heard, i)]
            p = ps[-1] if ps else -1
        return p
    def waits_for_more(w, s, m):                  # rule 8: MIN, at boundaries
        if not w.least or m.done == w.all or m.inp or (m.mine is not None and not w.delayed): return False
        if len(m.chain) % w.per and not w.f['least_mid']: return False
        return len(m.base if w.f['least_by'] == 'result' else w.members(s, m.cur)) < w.least

    # ---- the ledger ----
    def take(w, s, m, e, v):                      # a result is taken: counts advance the contributors' lanes
        r = w.result(s, e, v)
        lanes, done = list(m.lanes), set(m.done)
        readers = w.members(s, m.cur) if w.f['read_by_view'] else tuple(r)   # rule 4: through its contributors
        for c, (samples, _) in zip(readers, r.values()):
            done |= set(lanes[c][:len(samples)]); lanes[c] = lanes[c][len(samples):]
        true = {x for e2, v2 in list(enumerate(m.chain, 1)) + [(e, v)] for sp, _ in w.result(s, e2, v2).values() for x in sp}
        need(done == true, 'b-ledger', 'ledger says done', sorted(done), 'results hold', sorted(true))
        m = m._replace(chain=m.chain + (v,), lanes=tuple(lanes), done=frozenset(done), base=tuple(r))
        if w.f['free_at'] == 'result': m = w.free(m, r)                      # rule 6: non-contributors' lanes are freed
        if not w.f['wait_to_hear']: need(w.tail_plan(s, m, e) < m.heard, 'plan-unheard', 'Result', e, 'names plan', w.tail_plan(s, m, e))
        return w.deal(m, w.sharers(s, m)) if w.f['deal_when'] == 'take' else m
    def sharers(w, s, m):                         # rule 9: the agreed members
        return [o[1] for o in s.orders[:m.heard] if o[0] != 'go'][-1] if w.f['shares_by_view'] else m.base
    def deal(w, m, to):                           # in the order of members: tops lanes up, or adds one position to each
        held = {x for l in m.lanes for x in l}
        free = sorted(w.all - m.done - held)
        lanes = list(m.lanes)
        for c in to:
            if w.f['deal_when'] == 'work': lanes[c] += tuple(free[:1]); del free[:1]
            while w.f['deal_when'] == 'take' and len(lanes[c]) < w.depth and free: lanes[c] += (free.pop(0),)
        return m._replace(lanes=tuple(lanes))
    def free(w, m, view): return m._replace(lanes=tuple(l if i in view else () for i, l in enumerate(m.lanes)))

    # ---- start ----
    def blank(w, st, heard, cur, base):
        return M(st, heard, cur, cur >= 0, (), None, None, ((),) * len(w.ids), frozenset(), frozenset(), base, 0)
    def begin(w, heard, cur, members):            # the initial state, in force in the view cur
        m = w.blank('up', heard, cur, members)
        return w.deal(m, members) if w.f['deal_when'] == 'take' else m
    def start(w):
        first = tuple(range(w.n))
        ms = [w.begin(1, 0, first)] * w.n + [w.blank('wait', 1, -1, ())] * w.new
        said = frozenset((0, i) for i in first)
        return S(tuple(ms), (('plan', first),), frozenset(), frozenset(), said, said if w.f['first_holders'] else frozenset(),
                 frozenset(), frozenset(), (w.crashes, w.wrong))

    def put(w, s, i, m, **kw): return s._replace(ms=s.ms[:i] + (m,) + s.ms[i+1:], **kw)
    def enter(w, s, i, m):                        # frames carry (view, e): rule 1
        if not (m.ok and m.inp is not None): return s.ex
        mine = [x for x in s.ex if x[:3] == (m.cur, len(m.chain) + 1, i)]
        need(not mine or mine[0][3:] == m.inp, 'a-entered-twice', i, 'in', m.cur)
        return s.ex | {(m.cur, len(m.chain) + 1, i) + m.inp}

    # ---- events ----
    def next(w, s):
        for i, m in enumerate(s.ms):
            if m.st in ('up', 'wait'):
                if s.left[0]: yield f'{i} crashes', lambda: w.put(s, i, m._replace(st='dead'), left=(s.left[0]-1, s.left[1]))
                if m.heard < len(s.orders): yield f'{i} hears {m.heard}:{s.orders[m.heard]}', lambda: w.hear(s, i, m)
                if not m.ok and m.cur >= 0 and w.can_settle(s, i, m): yield f'{i} settles in {m.cur}', lambda: w.settle(s, i, m)
            if m.st == 'up':
                if w.can_work(s, i, m): yield f'{i} computes/enters {len(m.chain)+1}', lambda: w.work(s, i, m)
                if m.ok and m.inp is not None and w.all_in(s, i, m) and not w.must_compute(s, i, m):
                    yield f'{i} completes {len(m.chain)+1} in {m.cur}', lambda: w.complete(s, i, m)
                if w.can_board(s, i, m): yield f'{i} boards plan {w.plan_due(s, m)}', lambda: w.stand(s, i, m, w.plan_due(s, m))
                if not w.f['go'] and i in w.leave and w.may_leave(s, i): yield f'{i} leaves', lambda: w.put(s, i, m._replace(st='gone'))
        yield from w.coordinator(s)

    # The coordinator: plans, notices, and hears Settled.
    def base_view(w, s):                          # the newest view in force
        gos = [o[1] for o in s.orders if o[0] == 'go']
        vs = [i for i, o in enumerate(s.orders) if o[0] in ('loss', 'start') or i == 0 or i in gos or (not w.f['go'] and o[0] == 'plan')]
        return vs[-1]
    def pending(w, s):
        ps = [i for i, o in enumerate(s.orders) if o[0] == 'plan' and i > 0]
        if not ps: return -1
        p = ps[-1]
        if any(o[0] in ('loss', 'start') or o == ('go', p) for o in s.orders[p+1:]): return -1
        if not w.f['go'] and all((p, j) in s.know for j in w.members(s, p)): return -1
        return p
    def waiting(w, s): return {j for j in w.ids if j >= w.n and s.ms[j].st in ('wait', 'dead') and j not in s.off}
    def coordinator(w, s):
        p, b = w.pending(s), w.base_view(s)
        now = w.members(s, b)
        if len(now) and p < 0:
            want = tuple(sorted((set(now) | w.waiting(s)) - w.leave))
            if w.f['holder_in_plan'] and not set(want) & set(now): want = tuple(sorted(set(want) | set(now)))
            if want and set(want) != set(now): yield f'plan {want}', lambda: s._replace(orders=s.orders + (('plan', want),))
        for j in w.ids:
            suspect = s.ms[j].st == 'dead' or (s.left[1] and s.ms[j].st == 'up')
            stays = j in now or (p >= 0 and j in w.members(s, p)) or (not w.f['go'] and j in w.leave and s.ms[j].st == 'dead' and p >= 0)
            if j not in s.off and suspect and stays: yield f'loss of {j} noticed', lambda: w.notice(s, j, now, p)
        for v, j in s.said - s.know:
            if s.orders[v][0] == 'plan' and (v, j) in s.said: yield f'word Settled({v}) of {j} arrives', lambda: w.word(s, v, j)
    def notice(w, s, j, now, p):
        off = s.off | {j}
        holders = {i for _, i in s.know} | (set(range(w.n)) if w.f['first_holders'] else set())
        if w.f['go']:                             # fix 1: living members of the view in force; none: those of the plan that said Settled
            view = [i for i in now if i not in off]
            if not view and p >= 0: view = [i for i in w.members(s, p) if i not in off and (p, i) in s.know]
        else: view = [i for i in now if i not in off and (i in holders or w.f['new_in_loss'])]   # rule 7 as written
        if w.f['go'] and w.f['new_in_loss'] and p >= 0: view = [i for i in w.members(s, p) if i not in off]
        left = s.left if s.ms[j].st == 'dead' else (s.left[0], s.left[1] - 1)
        s = s._replace(off=off, left=left)
        if not view and w.f['start_over'] and w.waiting(s): return s._replace(orders=s.orders + (('start', tuple(sorted(w.waiting(s)))),))
        return s._replace(orders=s.orders + (('loss', tuple(view)),))
    def word(w, s, v, j):
        s = s._replace(know=s.know | {(v, j)})
        if w.f['go'] and v > 0 and w.pending(s) == v and all((v, i) in s.know for i in w.members(s, v)):
            s = s._replace(orders=s.orders + (('go', v),))
        return s
    def may_leave(w, s, i):
        ps = [v for v, o in enumerate(s.orders) if o[0] == 'plan' and v > 0 and i not in o[1]]
        return any(all((v, j) in s.know for j in w.members(s, v)) for v in ps)

    # A member hears the next order.
    def hear(w, s, i, m):
        v, o = m.heard, s.orders[m.heard]
        m = m._replace(heard=v + 1)
        if o[0] == 'go':
            if i not in w.members(s, o[1]): return w.put(s, i, m._replace(st='gone', ok=False))
            need(m.cur == o[1] and not m.ok, 'go-unexpected', i, 'hears go', o[1], 'in', m.cur)
            view = w.members(s, o[1])
            m = w.free(m, view)._replace(st='up', ok=True, base=view)
            if w.f['deal_when'] == 'take': m = w.deal(m, view)
            return w.put(s, i, m)
        if o[0] == 'plan':
            if m.st == 'wait' and i in o[1]: return w.stand(s, i, m, v)
            return w.put(s, i, m)
        if i in o[1] and o[0] == 'start':         # rule 8: it drops what it may have adopted
            return w.put(s, i, m._replace(st='up', cur=v, ok=True) if w.f['start_keeps'] and m.chain else w.begin(v + 1, v, o[1]))
        if i in o[1]:                             # rule 5: a loss closes the view; rule 6: stand in the new one
            if w.f['free_first']: m = w.free(m, o[1])
            if (m.cur, i) in s.said: m = m._replace(st='up')
            return w.stand(s, i, m, v)
        if i not in s.off and o[1] and m.st == 'up':  # it lives, nobody accused it: is what it made thrown away?
            kept = any(t.st == 'up' and j in o[1] and t.chain[:len(m.chain)] == m.chain for j, t in enumerate(s.ms))
            need(kept and not (m.inp and m.inp[0]) and not m.mine, 'h-thrown-away', i, 'is put out by', o, 'with', m.chain, m.inp)
        if i >= w.n and i not in s.off:           # a newcomer that is not in force yet: waits for the next plan
            return w.put(s, i, w.blank('wait', m.heard, -1, ()))
        return w.put(s, i, m._replace(st='out', ok=False, inp=None, mine=None))
    def stand(w, s, i, m, v):
        m = m._replace(cur=v, ok=False)
        told = s.orders[v][0] == 'plan' or w.f['digest'] == 'ledger' or w.f['new_in_loss'] or not w.f['go']   # else nobody reads it
        state = (m.lanes, m.done, m.base, m.steps) if told else None
        return w.put(s, i, m, stand=s.stand | {(v, i, m.chain, m.st == 'wait', state)})

    # Rule 6: settling.
    def gathered(w, s, v):
        g = {x[1]: x for x in s.stand if x[0] == v}
        return g if all(j in g for j in w.members(s, v)) else None
    def can_settle(w, s, i, m):
        g = w.gathered(s, m.cur)
        if g is None or (m.cur, i) in s.said: return False
        holders = [j for j in g if not g[j][3]]
        if not holders: return True
        E = max(len(g[j][2]) for j in holders)
        sender = min(j for j in holders if len(g[j][2]) == E)
        if m.inp and E > len(m.chain) and w.must_compute(s, i, m): return False
        return i == sender or (len(g[i][2]) == E and not g[i][3]) or (m.cur, sender) in s.said
    def settle(w, s, i, m):
        v, g, kind = m.cur, w.gathered(s, m.cur), s.orders[m.cur][0]
        view = w.members(s, v)
        holders = [j for j in g if not g[j][3]]
        need(holders, 'g-no-holder', i, 'settles in', v, 'where nobody ever settled')
        E = max(len(g[j][2]) for j in holders)
        sender = min(j for j in holders if len(g[j][2]) == E)
        need(kind == 'loss' or all(len(g[j][2]) == E for j in holders), 'stop', 'planned view', v, 'with unequal members')
        for j in holders:                         # digests
            need(g[j][2] == g[sender][2][:len(g[j][2])], 'a-digest', 'stop: different results in view', v)
            need(w.f['digest'] == 'chain' or len(g[j][2]) < E or g[j][4][:2] == g[sender][4][:2], 'a-digest', 'stop: ledgers differ in', v)
        if g[i][3]:                               # rule 7: a newcomer adopts, from a holder
            need(not (kind == 'loss' and E % w.per), 'g-adopts-in-a-round', i)
            lanes, done, base, steps = g[sender][4]
            m = m._replace(st='wait' if w.f['go'] else 'up', chain=g[sender][2], lanes=lanes, done=done, base=base, steps=steps)
            if kind == 'loss': m = m._replace(st='up')
        elif len(m.chain) == E - 1:               # rule 6: healed
            m = w.take(s, m, E, g[sender][2][-1])
            if not w.f['keep_input']: m = m._replace(inp=None)
            s = s._replace(lines=w.line(s, i, m))
        else: need(len(m.chain) == E, 'd-stop', i, 'completed', len(m.chain), 'of', E)
        said = s.said | {(v, i)}
        if kind == 'plan' and w.f['go']: return w.put(s, i, m, said=said)     # and wait for Go
        if kind == 'plan' or w.f['free_at'] == 'settle': m = w.free(m, view)
        if kind == 'plan': m = m._replace(base=view)                          # go=False: in force at once
        if w.f['deal_at'] == 'settle' or (kind == 'plan' and w.f['deal_when'] == 'take'): m = w.deal(m, view)
        m = m._replace(ok=True)
        return w.put(s, i, m, said=said, ex=w.enter(s, i, m))

    # Computing and entering.
    def can_board(w, s, i, m):
        if not m.ok or m.inp is not None or m.mine is not None or len(m.chain) % w.per: return False
        p = w.plan_due(s, m)
        if p < 0 or p >= m.heard or i not in w.members(s, p): return False   # p >= m.heard: only with plan_by='max'
        return not w.delayed or w.is_drained(s, m, p)
    def is_drained(w, s, m, p):                   # delayed: one more exchange after the one whose tails named the plan
        return m.done == w.all or (len(m.chain) > 1 and w.tail_plan(s, m, len(m.chain) - 1) == p)
    def can_work(w, s, i, m):
        if m.done == w.all or m.cur < 0 or (not m.ok and s.orders[m.cur][0] == 'plan'): return False
        p = w.plan_due(s, m)
        if w.delayed:
            if m.inp is None and m.mine is not None: return True
            if m.mine is not None: return False
            return p < 0 or (m.inp is None and not w.is_drained(s, m, p))
        if m.inp is not None: return False
        if m.mine is not None: return True        # a round that has begun
        return len(m.chain) % w.per != 0 and not (w.f['least_mid'] and w.waits_for_more(s, m)) or (p < 0 and not w.waits_for_more(s, m))
    def must_compute(w, s, i, m): return w.f['compute_first'] and m.mine is None and w.can_work(s, i, m)
    def work(w, s, i, m):
        heard = s.orders[:m.heard]
        ps = [k for k, o in enumerate(heard) if o[0] == 'plan' and k > m.cur and not w.is_void(heard, k)]
        tail = ps[-1] if ps else -1
        if w.delayed and m.inp is None and m.mine is not None: m = m._replace(inp=(m.mine, tail), mine=None)
        else:
            fresh = len(m.chain) % w.per == 0     # only the first exchange of a round carries samples
            if fresh and (w.steps > 1 or w.f['deal_when'] == 'work'): m = m._replace(steps=m.steps + 1)
            if fresh and w.f['deal_when'] == 'work': m = w.deal(m, w.sharers(s, m))
            skip = (len(m.inp[0]) if m.inp else 0) + len(m.mine or ())
            got = m.lanes[i][skip:skip+1] if fresh else ()
            for x in got:                         # (e)
                for j, t in enumerate(s.ms):
                    need(i in s.off or x not in t.comp or t.st != 'up' or j in s.off, 'e-computed-twice', 'sample', x, 'by', i, 'and', j)
            m = m._replace(comp=m.comp | set(got))
            got = (m.mine or ()) + got
            m = m._replace(mine=got) if w.delayed or (fresh and m.steps % w.steps) else m._replace(inp=(got, tail), mine=None)
        return w.put(s, i, m, ex=w.enter(s, i, m))
    def all_in(w, s, i, m):
        e = len(m.chain) + 1
        return {x[2] for x in s.ex if x[0] == m.cur and x[1] == e} >= set(w.members(s, m.cur))
    def complete(w, s, i, m):
        e = len(m.chain) + 1
        need(e <= w.N * w.per + 4, 'c-no-end', 'exchange', e)
        m = w.take(s, m, e, m.cur)._replace(inp=None)
        return w.put(s, i, m, lines=w.line(s, i, m))
    def line(w, s, i, m):                         # rule 12: one line per result
        e, v = len(m.chain), m.chain[-1]
        return s.lines | {(e, v)} if w.f['line_by'] == 'any' or i == min(w.members(s, v)) else s.lines

    # ---- properties ----
    def living(w, s):                             # survivors: up, not accused, in every loss view that is on its way to them
        return [(j, m) for j, m in enumerate(s.ms) if m.st == 'up' and j not in s.off
                and all(j in o[1] for o in s.orders[m.heard:] if o[0] in ('loss', 'start'))]
    def turn(w, s, m): return max((i for i in range(m.heard) if s.orders[i][0] in ('go', 'start')), default=0)
    def check(w, s):
        up = w.living(s)
        for j, m in up:
            held = [x for l in m.lanes for x in l]
            need(len(held) == len(set(held)) and not set(held) & m.done, 'b-ledger', 'lanes', m.lanes, 'done', sorted(m.done))
            spans = [x for e, v in enumerate(m.chain, 1) for sp, _ in w.result(s, e, v).values() for x in sp]
            need(len(spans) == len(set(spans)), 'b-repeated', j, 'holds', spans)
            for k, t in up:
                if k <= j or not set(o := s.orders[w.base_view(s)][1]) >= {j, k}: continue
                n = min(len(m.chain), len(t.chain))
                need(m.chain[:n] == t.chain[:n], 'a-results', j, m.chain, k, t.chain)
                need(abs(len(m.chain) - len(t.chain)) <= 1, 'd-apart', j, len(m.chain), k, len(t.chain))
                if w.f['free_at'] == w.f['deal_at'] == 'result' and not w.f['free_first']:   # settled or not: equal results and equal deals make equal ledgers
                    same = w.turn(s, m) == w.turn(s, t) and (w.f['deal_when'] == 'take' or m.steps == t.steps)
                else: same = m.ok and t.ok and m.cur == t.cur and (w.f['deal_when'] == 'take' or m.steps == t.steps)
                if same and len(m.chain) == len(t.chain):
                    need(m.lanes == t.lanes, 'a-ledgers', j, m.lanes, k, t.lanes)
    def check_end(w, s):                          # nothing but faults can happen any more
        view = s.orders[w.base_view(s)][1]
        up = [(j, m) for j, m in w.living(s) if j in view]
        if not up:                                # nobody lives
            need(not any(m.st == 'wait' and j not in s.off for j, m in enumerate(s.ms)), 'c-waits', 'a worker waits for ever')
            return 'nobody'
        for j, m in up: need(m.done == w.all, 'c-deadlock', [(k, t.st, t.cur, t.ok, len(t.chain)) for k, t in enumerate(s.ms)])
        best = {}                                 # (f) the journal, read: the newest view's line of each exchange survives
        began = max((i for i, o in enumerate(s.orders) if o[0] == 'start' and w.f['start_line']), default=0)
        for e, v in s.lines:
            if v >= began: best[e] = max(v, best.get(e, -1))
        need(tuple(best.get(e) for e in range(1, len(best) + 1)) == up[0][1].chain, 'f-journal', sorted(s.lines), 'held', up[0][1].chain)
        if began: return 'started over'
        return 'wasted' if len(s.lines) > len(best) else 'clean'

    def walk(w, limit=60, seed=1):                # random walks, for worlds too large to visit whole
        import random
        dice, t0, found, ends, steps = random.Random(seed), time.time(), {}, {}, 0
        while time.time() - t0 < limit:
            s, trail, p_fault = w.start(), [], dice.choice((0.0, 0.01, 0.05, 0.2))
            try:
                while True:
                    moves = list((what, i) for i, (what, _) in enumerate(w.next(s)))
                    calm = [x for x in moves if 'crashes' not in x[0] and not ('noticed' in x[0] and s.ms[int(x[0].split()[2])].st != 'dead')]
                    if not calm: k = w.check_end(s); ends[k] = ends.get(k, 0) + 1; break
                    what, pick = dice.choice(moves if dice.random() < p_fault else calm)
                    trail.append(what); steps += 1
                    for i, (_, act) in enumerate(w.next(s)):
                        if i == pick: s = act(); break
                    w.check(s)
            except Violation as x:
                kind = str(x).split(':')[0]
                if kind not in found or len(found[kind][1]) > len(trail): found[kind] = (str(x), trail)
        return steps, ends, found, time.time() - t0

    def run(w, limit=60, keep_going=True):
        s0, t0 = w.start(), time.time()
        parent, queue, found, ends = {s0: None}, deque([s0]), {}, {}
        def trace(s, last):
            steps = [last]
            while parent[s]: s, what = parent[s]; steps.append(what)
            return steps[::-1]
        while queue:
            s = queue.popleft(); moved = False
            if time.time() - t0 > limit: ends['UNFINISHED'] = len(queue); break
            for what, act in w.next(s):
                if 'crashes' not in what: moved |= not ('noticed' in what and s.ms[int(what.split()[2])].st != 'dead')
                try:
                    t = act()
                    if t in parent: continue
                    w.check(t)
                    parent[t] = (s, what); queue.append(t)
                except Violation as x:
                    kind = str(x).split(':')[0]
                    if kind not in found: found[kind] = (str(x), trace(s, what))
                    if not keep_going: queue.clear(); break
            if not moved:
                try: k = w.check_end(s); ends[k] = ends.get(k, 0) + 1
                except Violation as x:
                    kind = str(x).split(':')[0]
                    if kind not in found: found[kind] = (str(x), trace(s, '(end)'))
                    if not keep_going: queue.clear()
        return len(parent), ends, found, time.time() - t0

WORLDS = {
  '3, one loss': dict(n=3, samples=6, crashes=1, depth=2),
  '3, two losses': dict(n=3, samples=5, crashes=2, depth=2),
  '3, a loss and a wrong put-out': dict(n=3, samples=4, crashes=1, wrong=1),
  '4, one loss': dict(n=4, samples=5, crashes=1),
  '4, two losses': dict(n=4, samples=4, crashes=2),
  '4, two losses, six samples': dict(n=4, samples=6, crashes=2),
  '3, two exchanges a round, two losses': dict(n=3, samples=4, per=2, crashes=2),
  '3, two steps a round, two losses': dict(n=3, samples=8, steps=2, depth=2, crashes=2),
  '3, delayed, two losses': dict(n=3, samples=5, delayed=True, depth=2, crashes=2),
  '3, delayed, dealt step by step, two losses': dict(n=3, samples=5, delayed=True, crashes=2, deal_when='work', compute_first=True),
  '2+1 joins, one loss': dict(n=2, new=1, samples=5, depth=2, crashes=1),
  '2+1 joins, two losses': dict(n=2, new=1, samples=4, depth=2, crashes=2),
  '1+2 join, two losses': dict(n=1, new=2, samples=3, crashes=2),
  '3+1 joins, one loss': dict(n=3, new=1, samples=3, crashes=1),
  '2+1 joins, two exchanges a round, one loss': dict(n=2, new=1, samples=4, per=2, depth=2, crashes=1),
  '2+1 joins, two steps a round, one loss': dict(n=2, new=1, samples=8, steps=2, depth=2, crashes=1),
  '2+1 joins, delayed, one loss': dict(n=2, new=1, samples=5, delayed=True, depth=2, crashes=1),
  '2+1 joins, delayed, dealt step by step, one loss': dict(n=2, new=1, samples=5, delayed=True, crashes=1, deal_when='work', compute_first=True),
  '3, one leaves, one loss': dict(n=3, leave=(2,), samples=6, depth=2, crashes=1),
  '2+1 joins, one leaves, one loss': dict(n=2, new=1, leave=(1,), samples=5, depth=2, crashes=1),
  '3+1, minimum 3, one loss': dict(n=3, new=1, samples=3, least=3, crashes=1),
  '2+1, minimum 2, two exchanges a round, one loss': dict(n=2, new=1, samples=3, per=2, least=2, crashes=1),
}
LARGE = {
  '3+1 joins, two losses': dict(n=3, new=1, samples=9, depth=2, crashes=2),
  '4+2 join, one leaves, two losses, a wrong put-out': dict(n=4, new=2, leave=(0,), samples=12, depth=2, crashes=2, wrong=1),
  'the same, two exchanges a round': dict(n=4, new=2, leave=(0,), samples=10, depth=2, per=2, crashes=2, wrong=1),
  'the same, two steps a round': dict(n=4, new=2, leave=(0,), samples=20, depth=2, steps=2, crashes=2, wrong=1),
  'the same, delayed': dict(n=4, new=2, leave=(0,), samples=14, depth=2, delayed=True, crashes=2, wrong=1),
  'the same, delayed, dealt step by step': dict(n=4, new=2, leave=(0,), samples=14, delayed=True, crashes=2, wrong=1, deal_when='work', compute_first=True),
  '4+2, minimum 4, two losses': dict(n=4, new=2, samples=12, least=4, crashes=2),
  '2+2 join, three losses, a wrong put-out': dict(n=2, new=2, samples=8, depth=2, crashes=3, wrong=1),
}
MUTATIONS = {                                     # the broken rule: a world that finds it, the flags that break it
  'lanes of the lost are freed when a loss is settled': ('3, one loss', dict(free_at='settle')),
  'lanes of the lost are freed when a loss is heard': ('3, one loss', dict(free_first=True)),
  'a settled loss is dealt at once': ('3, one loss', dict(deal_at='settle')),
  'a settled loss is dealt at once, lanes dealt ahead': ('4, two losses, six samples', dict(deal_at='settle', free_at='settle', deal_when='take')),
  'a delayed sum deals when a gradient is computed': ('3, delayed, two losses', dict(deal_when='work')),
  'shares by the view that a member has heard of': ('3, one loss', dict(shares_by_view=True)),
  'results are read through the current view': ('3, one loss', dict(read_by_view=True)),
  'a healed member keeps its input': ('3, one loss', dict(keep_input=True)),
  'a result names the newest plan that any contributor heard of': ('2+1 joins, one loss', dict(plan_by='max')),
  'a plan outlives a loss': ('2+1 joins, one loss', dict(void='never')),
  'a planned view without a holder': ('2+1 joins, one leaves, one loss', dict(holder_in_plan=False)),
  'a planned view is in force without Go': ('2+1 joins, two losses', dict(go=False)),
  'a loss view with a newcomer that is not in force': ('2+1 joins, two losses', dict(new_in_loss=True)),
  'the same, two exchanges a round': ('2+1 joins, two exchanges a round, one loss', dict(new_in_loss=True)),
  'the minimum is judged by the view heard of': ('3+1, minimum 3, one loss', dict(least_by='view')),
  'the minimum is judged inside a round': ('2+1, minimum 2, two exchanges a round, one loss', dict(least_by='view', least_mid=True)),
  'nobody starts over': ('1+2 join, two losses', dict(start_over=False)),
  'a worker that starts over keeps what it adopted': ('1+2 join, two losses', dict(start_keeps=True)),
  'no line StartedOver': ('1+2 join, two losses', dict(start_line=False)),
  'the lowest contributor alone writes the line': ('3, one loss', dict(line_by='lowest')),
  'digests of ledgers as they stand': ('3, one loss', dict(digest='ledger')),
}
def show(name, w, limit, walk=False, keep=True, traces=True):
    n, ends, found, took = w.walk(limit) if walk else w.run(limit, keep)
    verdict = f'VIOLATIONS {sorted(found)}' if found else 'not finished' if 'UNFINISHED' in ends else 'holds'
    print(f'{name}: {n:,} {"steps" if walk else "states"}, {took:.0f} s, ends {ends}, {verdict}', flush=True)
    for why, steps in found.values() if traces else ():
        print(f'   {why}\n      ' + '; '.join(steps))
    return bool(found)
def main(mode='worlds', *rest):
    name, rest = (rest[0], rest[1:]) if mode == 'one' else (None, rest)
    flags = {k: {'True': True, 'False': False}.get(v, v) for k, v in (a.split('=') for a in rest)}
    if mode == 'one': return show(name, World(**{**{**WORLDS, **LARGE}[name], **flags}), 600)
    if mode == 'worlds': return any([show(name, World(**{**world, **flags}), 300) for name, world in WORLDS.items()])
    if mode == 'walks': return any([show(name, World(**{**world, **flags}), 40, walk=True) for name, world in LARGE.items()])
    if mode == 'mutations':
        return not all([show(f'{name} [{world}]', World(**{**WORLDS, **LARGE}[world], **broken), 120, keep=False)
                        for name, (world, broken) in MUTATIONS.items()])
    sys.exit(__doc__)
if __name__ == '__main__': sys.exit(main(*sys.argv[1:]))
