/* The SASS engine: executes the blocks of one launch, warp by warp, from bytecode that decode.py makes.
 *
 * A register is 32 lanes of 32 bits. Uniform registers, special registers and constants are kept as 32 equal lanes,
 * so that every operand is a vector. A warp is a set of splits (program counter + lanes); BSSY/BSYNC reconverge them.
 * Between two barriers each warp runs to its next stop in turn, which is one legal order; the shadow of shared memory
 * finds the kernels for which another order would matter.
 *
 * Compile: cc -O3 -march=native -ffp-contract=off -shared -fPIC engine.c -o engine.so -lpthread -lm
 */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int16_t i16; typedef int32_t i32; typedef int64_t i64;

#define OPS(X) X(NOP) X(MOV) X(IADD3) X(IADD3C) X(IMAD) X(IMADWIDE) X(IMADHI) X(LEA) X(LEAHI) X(SHF) X(LOP3) X(PLOP3) \
  X(ISETP) X(IMNMX) X(SEL) X(P2R) X(R2P) X(PRMT) X(POPC) X(FLO) X(BREV) X(BMSK) X(SGXT) X(IABS) X(I2F) X(F2I) X(MUFU) \
  X(FFMA) X(FFMAM) X(FMUL) X(FADD) X(FSETP) X(FCHK) X(FMNMX) X(R2UR) X(VOTE) X(SHFL) X(LDC) \
  X(LDG) X(STG) X(LDS) X(STS) X(LDGSTS) X(LDL) X(STL) X(COMMIT) X(WAIT) X(BRA) X(BRADIV) X(CALL) X(RET) X(EXIT) X(BAR) \
  X(BSSY) X(BSYNC) X(BREAK) X(READB) X(WRITEB) X(WARPSYNC) X(UNKNOWN)
enum {
#define X(n) OP_##n,
  OPS(X)
#undef X
};
const char *engine_ops(void) {
#define X(n) #n " "
  return OPS(X);
#undef X
}

enum { ROW_RZ = 255, ROW_UR = 256, ROW_SPECIAL = 320, ROWS = 344 };
enum { PT = 7, UPT = 15 };
enum { READABLE = 1, WRITABLE = 2, WRITTEN = 4 };  /* shadow of a word of global memory */
enum { FAULT_NONE, FAULT_GLOBAL, FAULT_MISALIGNED, FAULT_SHARED, FAULT_UNINITIALISED, FAULT_RACE, FAULT_ASYNC, FAULT_BARRIER,
       FAULT_BUDGET, FAULT_TWICE, FAULT_UNKNOWN, FAULT_DEADLOCK, FAULT_LOCAL, FAULT_MEMORY, FAULT_STOPPED, FAULT_RETURN };

typedef struct { i32 row; u32 flip, add; } Source;  /* integer (v ^ flip) + add; float (v & add) ^ flip; row < 0: constant ~row */
typedef struct {
  i32 op, dst, pdst, pdst2, guard, guard_not, sub, width, target, n, uniform, slot;
  i64 offset;
  Source s[4];
  i32 ps[4], pn[4];
} Ins;
typedef struct { i64 executed, threads, on, requests, sectors, lines, sectors_ideal, wavefronts, wavefronts_ideal, predicted, predicted_ideal, data_wavefronts; } Count;
typedef struct { i32 kind, pc, warp, lane, other_pc, other_warp, other_lane, hazard; i64 block; u64 address; } Fault;

typedef struct { i32 pc, warp; u32 epoch, mask; u64 address[32]; u32 value[4][32]; } Trace;  /* one executed access to global or shared memory */

typedef struct {
  const Ins *code; i32 ncode, nslots;
  const u32 (*constants)[32];
  const u8 *bank0; u32 bank0_bytes;
  u32 *memory; u8 *shadow; u64 base, bytes;
  i32 grid[3], block[3], shared_low, shared_high, local_words;
  const i64 *blocks; const i64 *weights; i64 nblocks;
  i64 budget;
  i32 nworkers;
  volatile i32 stop; volatile i64 next, done;
  Trace *trace; i64 ntrace, traced;  /* filled in order by the only worker, up to ntrace */
} Job;

#define LANES _Pragma("GCC ivdep") for (int l = 0; l < 32; l++)

/* ---- what a memory instruction's lanes touch, remembered per instruction ------------------------------------ */

typedef struct {
  u32 mask, phases, rel[32] __attribute__((aligned(64)));
  u16 sectors[32], lines[32], sectors_ideal, wavefronts, groups, predicted, predicted_ideal, nwords;
  u8 valid, same, contiguous, dense;  /* lanes: all at one address, one after another; words: one after another */
  i32 word[128]; u8 lane[128];
  u32 id, beside, beside_phase; u16 beside_wavefronts;  /* LDGSTS: the wavefronts with the pattern of this id on the global side */
} Pattern;
enum { WAYS = 4 };
typedef struct { Pattern way[WAYS]; int last; u32 made; } Patterns;  /* last: the way that matched last */

static int distinct(u64 *v, int n) {
  int c = 0;
  for (int i = 0; i < n; i++) { int j = 0; while (j < c && v[j] != v[i]) j++; if (j == c) v[c++] = v[i]; }
  return c;
}

/* Global memory, the tag stage: distinct 32-byte sectors and 128-byte lines over the active lanes. */
static void count_global(Pattern *p, u32 phase) {
  u64 sector[32], line[32]; int n = 0;
  for (int l = 0; l < 32; l++) if (p->mask >> l & 1) { u64 a = (u64)(i64)(i32)p->rel[l] + (1ull << 40) + phase * 4; sector[n] = a >> 5; line[n++] = a >> 7; }
  p->sectors[phase] = distinct(sector, n); p->lines[phase] = distinct(line, n);
}

/* Lanes served `group` at a time: per group the most distinct words in a bank. Returns the groups that have a lane. */
static u16 serve(const Pattern *p, u32 first, int width, int group, u16 *wavefronts) {
  u16 groups = 0;
  *wavefronts = 0;
  for (int g = 0; g < 32; g += group) {
    i32 word[128]; u8 bank[32] = {0}; int n = 0, most = 0;
    for (int l = g; l < g + group; l++) if (p->mask >> l & 1) for (int k = 0; k < width; k += 4) {
      i32 w = (i32)((first + p->rel[l] + k) >> 2); int j = 0;
      while (j < n && word[j] != w) j++;
      if (j == n) { word[n++] = w; int c = ++bank[w & 31]; if (c > most) most = c; }
    }
    if (n) { *wavefronts += most; groups++; }
  }
  return groups;
}

/* Shared memory, the data stage. Neighbours that want the same words let it serve two groups as one. Nsight Compute, which works
 * `memory_l1_wavefronts_shared` out from the addresses, reckons with that only where no conflict is left; the hardware's
 * own counters say that it is so always. (H200, ncu 2025.3.1: profiles/recorded/h200/shared_reads.) */
static void count_shared(Pattern *p, u32 first, int width, int store) {
  int apart = width <= 4 ? 32 : width == 8 ? 16 : 8, merged = 0;
  p->groups = p->predicted_ideal = serve(p, first, width, apart, &p->wavefronts);
  p->predicted = p->wavefronts;
  if (width >= 8 && !store) for (int x = 1; x <= 2 && !merged; x++) {
    merged = 1;
    for (int l = 0; l < 32 && merged; l++)
      if ((p->mask >> l & 1) && (p->mask >> (l ^ x) & 1) && p->rel[l] != p->rel[l ^ x]) merged = 0;
  }
  if (!merged) return;
  p->groups = serve(p, first, width, 2 * apart, &p->wavefronts);
  if (p->wavefronts == p->groups) p->predicted = p->predicted_ideal = p->groups;
}

/* LDGSTS writes shared memory as the global lines come in: lanes of different 128-byte lines are not served together.
 * (ncu counts four wavefronts for 4-byte copies from four rows that go to 32 banks; H200, ncu 2025.3.1.) */
static u16 count_copy(Pattern *q, const Pattern *p, u32 phase, u32 first, int width) {
  if (p->lines[phase] == 1) return q->wavefronts;
  if (q->beside == p->id && q->beside_phase == phase) return q->beside_wavefronts;
  u32 left = q->mask; u16 sum = 0;
  while (left) {
    Pattern part = *q; part.mask = 0; u64 line = 0;
    for (int l = 0; l < 32; l++) if (left >> l & 1) {
      u64 at = ((u64)(i64)(i32)p->rel[l] + (1ull << 40) + phase * 4) >> 7;
      if (!part.mask) line = at;
      if (at == line) part.mask |= 1u << l;
    }
    count_shared(&part, first, width, 1);
    sum += part.wavefronts; left &= ~part.mask;
  }
  q->beside = p->id; q->beside_phase = phase; q->beside_wavefronts = sum;
  return sum;
}

/* ncu's ideal: the sectors that the lanes' bytes would fill, each lane's for itself, or those it touches where these are fewer.
 * (H200, ncu 2025.3.1: a warp of 2 x 16 threads that reads two words far apart, 16 lanes each, has an ideal of 2, not 1.) */
static i64 sectors_ideal(const Pattern *p, u32 phase) {
  return p->sectors_ideal < p->sectors[phase] ? p->sectors_ideal : p->sectors[phase];
}

/* The pattern of this access; `first` receives the address of the lowest active lane. kind: 0 global, 1 shared load, 2 shared store.
 * used: bit k is set if word k of a lane counts as touched. */
static Pattern *pattern(Patterns *set, const u32 *a, u32 mask, int width, int kind, int used) {
  u32 rel[32] __attribute__((aligned(64))), first = a[__builtin_ctz(mask)];
  u32 low = first & 3;
  if (mask == ~0u) { LANES rel[l] = a[l] - first; }
  else LANES rel[l] = (mask >> l & 1) ? a[l] - first : 0;
  Pattern *p = 0;
  for (int i = 0; i < WAYS; i++) {
    Pattern *q = &set->way[(set->last + i) % WAYS];
    if (!q->valid || q->mask != mask) continue;
    u32 differ = 0;
    LANES differ |= rel[l] ^ q->rel[l];
    if (!differ && (width >= 4 || q->lane[127] == low)) { p = q; set->last = (set->last + i) % WAYS; break; }
  }
  if (!p) {
    set->last = (set->last + 1) % WAYS; p = &set->way[set->last];
    memset(p, 0, sizeof *p);
    p->id = ++set->made; p->valid = 1; p->mask = mask; memcpy(p->rel, rel, sizeof rel);
    p->same = 1; p->contiguous = mask == ~0u && width >= 4;
    int n = 0;
    for (int l = 0; l < 32; l++) if (mask >> l & 1) {
      p->same &= rel[l] == 0; p->contiguous &= rel[l] == (u32)(l * width);
      for (int k = 0; k < width; k += 4) if (used >> k / 4 & 1) {
        i32 w = (i32)(low + rel[l] + k) >> 2; int j = 0;
        while (j < n && p->word[j] != w) j++;
        if (j == n) { p->word[n] = w; p->lane[n++] = l; }
      }
    }
    p->nwords = n; p->dense = 1;
    for (int i = 1; i < n; i++) p->dense &= p->word[i] == p->word[0] + i;
    p->sectors_ideal = (__builtin_popcount(mask) * width + 31) / 32;  /* at most, see sectors_ideal() */
    count_shared(p, first, width, kind != 1);  /* the data stage serves global memory by banks too, without the pair rule */
    if (width < 4) p->lane[127] = low;
  }
  if (!kind) {
    u32 phase = (first & 127) >> 2;
    if (!(p->phases >> phase & 1)) { p->phases |= 1u << phase; count_global(p, phase); }
  }
  return p;
}

/* ---- shared memory and its shadow --------------------------------------------------------------------------- */

/* A block's clock counts its warp instructions. Between two barriers (an epoch) each warp runs once, without a break, so a
 * stamp of the clock tells the epoch, the warp, and how far into the epoch the warp was. `who` is pc << 8 | lane. */
typedef struct {
  u32 *written, *written_who;      /* latest write; 0: never */
  u32 *read, *read_who;            /* latest read */
  u32 *other, *other_who;          /* latest read by another warp than read's */
  u32 *async;                      /* cp.async group + 1 of the latest write, 0: an ordinary store */
} Shadow;
enum { SHADOWS = sizeof(Shadow) / sizeof(u32 *) };

enum { GROUPS = 64 };
typedef struct { i32 pc; u32 lanes; i32 state, barrier; } Split;
enum { RUN, AT_BSYNC, AT_BAR, AT_WARPSYNC };
typedef struct {
  u32 r[ROWS][32] __attribute__((aligned(64)));
  u32 p[16], b[16];
  Split split[33]; int nsplits;
  u32 live, started;
  u32 run;  /* the clock when this epoch's run began */
  u32 committed, completed, completed_at[GROUPS];
  i32 *local;
} Warp;

typedef struct {
  Job *job; Count *count, *scratch, *total; Patterns *patterns; Warp *warps; u32 *shared; Shadow shadow; u32 *shadow_words;
  u32 *local; u32 clock, epoch; u8 *async_owner, *queued;
  u32 *pending; size_t npending;  /* words that a cp.async has written and that no wait and barrier have settled */
  i64 block; int me; Fault fault, uninitialised;
} Worker;

static int fail(Worker *K, int kind, int pc, int lane, u64 address) {
  K->fault = (Fault){.kind = kind, .pc = pc, .warp = K->me, .lane = lane, .other_pc = -1, .block = K->block, .address = address};
  return 1;
}
static void other_party(Worker *K, u32 stamp, u32 who) {
  int w = 0;
  for (int v = 0; v <= K->me; v++) if (K->warps[v].run <= stamp) w = v;
  K->fault.other_pc = who >> 8; K->fault.other_lane = who & 255; K->fault.other_warp = w;
}
/* A race with the access stamped `before`: the hazard's name follows from which came earlier within its warp's run. */
static int race(Worker *K, int pc, int lane, u64 address, u32 before, u32 who, int before_writes, int now_writes) {
  fail(K, FAULT_RACE, pc, lane, address);
  other_party(K, before, who);
  int before_first = before - K->warps[K->fault.other_warp].run <= K->clock - K->warps[K->me].run;
  int first = before_first ? before_writes : now_writes, second = before_first ? now_writes : before_writes;
  K->fault.hazard = first && second ? 2 : first ? 0 : 1;  /* read-after-write, write-after-read, write-after-write */
  return 1;
}

/* The word-by-word check, for words that the quick one found suspicious; 1 on a fault. */
static int inspect(Worker *K, Warp *W, const Pattern *p, u32 base, int pc, int store) {
  Shadow *S = &K->shadow; u32 span = W->run - K->epoch;  /* stamps of this epoch by other warps: [epoch, run) */
  for (int i = 0; i < p->nwords; i++) {
    u32 w = base + p->word[i], lane = p->lane[i]; u64 address = 4ull * w;
    if (S->written[w] - K->epoch < span) return race(K, pc, lane, address, S->written[w], S->written_who[w], 1, store);
    if (S->async[w]) {
      u32 group = S->async[w] - 1; int v = S->written_who[w] & 255, by = S->written_who[w] >> 8;
      int owner = K->async_owner[w]; const Warp *V = &K->warps[owner];
      if ((i32)(V->completed - group) <= 0) {  /* its group is not among those waited for */
        fail(K, FAULT_ASYNC, pc, lane, address);
        K->fault.other_pc = by; K->fault.other_lane = v; K->fault.other_warp = owner;
        return 1;
      }
      u32 at = V->completed_at[group % GROUPS];
      if (owner != K->me && at - K->epoch < span) return race(K, pc, lane, address, at, S->written_who[w], 1, store);
    }
    if (store) {
      if (S->read[w] - K->epoch < span) return race(K, pc, lane, address, S->read[w], S->read_who[w], 0, 1);
      if (S->other[w] - K->epoch < span) return race(K, pc, lane, address, S->other[w], S->other_who[w], 0, 1);
    } else if (!S->written[w] && !K->uninitialised.kind)
      K->uninitialised = (Fault){.kind = FAULT_UNINITIALISED, .pc = pc, .warp = K->me, .lane = lane, .other_pc = -1, .block = K->block, .address = address};
  }
  return 0;
}

/* At a barrier: a copy whose group has been waited for is from now on like a store at the time of that wait. */
static void settle(Worker *K) {
  size_t left = 0;
  for (size_t i = 0; i < K->npending; i++) {
    u32 w = K->pending[i], group = K->shadow.async[w] - 1; const Warp *V = &K->warps[K->async_owner[w]];
    if (!K->shadow.async[w]) K->queued[w] = 0;  /* stored to since */
    else if ((i32)(V->completed - group) <= 0) K->pending[left++] = w;
    else { K->shadow.async[w] = K->queued[w] = 0; K->shadow.written[w] = V->completed_at[group % GROUPS]; }
  }
  K->npending = left;
}

/* Checks and records one access to shared memory; 1 on a fault. */
static int touch(Worker *K, Warp *W, const Pattern *p, u32 first, int pc, int store, int async) {
  Shadow *S = &K->shadow; u32 base = first >> 2, epoch = K->epoch, span = W->run - epoch, clock = K->clock, run = W->run, who = (u32)pc << 8, bad = 0;
  int n = p->nwords;
  if (K->npending) for (int i = 0; i < n; i++) bad |= S->async[base + p->word[i]];
  if (!store) {
    u32 *written = S->written, *read = S->read, *read_who = S->read_who, *other = S->other, *other_who = S->other_who;
    if (p->dense) {
      u32 at = base + p->word[0];
      written += at; read += at; read_who += at; other += at; other_who += at;
      _Pragma("GCC ivdep") for (int i = 0; i < n; i++) bad |= (u32)(written[i] - epoch < span) | (u32)(written[i] == 0);
      if (bad && inspect(K, W, p, base, pc, 0)) return 1;
      _Pragma("GCC ivdep") for (int i = 0; i < n; i++) {
        u32 mine = read[i] >= run;
        other[i] = mine ? other[i] : read[i]; other_who[i] = mine ? other_who[i] : read_who[i];
        read[i] = clock; read_who[i] = who | p->lane[i];
      }
    } else {
      for (int i = 0; i < n; i++) { u32 x = written[base + p->word[i]]; bad |= (u32)(x - epoch < span) | (u32)(x == 0); }
      if (bad && inspect(K, W, p, base, pc, 0)) return 1;
      for (int i = 0; i < n; i++) {
        u32 w = base + p->word[i];
        if (read[w] < run) { other[w] = read[w]; other_who[w] = read_who[w]; }
        read[w] = clock; read_who[w] = who | p->lane[i];
      }
    }
    return 0;
  }
  for (int i = 0; i < n; i++) {
    u32 w = base + p->word[i];
    bad |= (u32)(S->written[w] - epoch < span) | (u32)(S->read[w] - epoch < span) | (u32)(S->other[w] - epoch < span);
  }
  if (bad && inspect(K, W, p, base, pc, 1)) return 1;
  for (int i = 0; i < n; i++) { u32 w = base + p->word[i]; S->written[w] = clock; S->written_who[w] = who | p->lane[i]; }
  if (async) for (int i = 0; i < n; i++) {
    u32 w = base + p->word[i];
    S->async[w] = W->committed + 1; K->async_owner[w] = K->me;
    if (!K->queued[w]) { K->queued[w] = 1; K->pending[K->npending++] = w; }
  }
  else if (K->npending) for (int i = 0; i < n; i++) S->async[base + p->word[i]] = 0;
  return 0;
}

/* ---- one warp ------------------------------------------------------------------------------------------------ */

#define WRITE(expr) do { if (on == ~0u) { LANES d[l] = (expr); } else { LANES { u32 v_ = (expr); d[l] = (on >> l & 1) ? v_ : d[l]; } } } while (0)
#define SRC(k) (I->s[k].row >= 0 ? W->r[I->s[k].row] : C[~I->s[k].row])
#define INT(x, k) ((x[l] ^ I->s[k].flip) + I->s[k].add)
#define FLT(x, k) as_float((x[l] & I->s[k].add) ^ I->s[k].flip)
#define PAIR(lo, hi) ((((u64)lo[l] | (u64)hi[l] << 32) ^ (I->width ? ~0ull : 0)) + (I->width ? 1 : 0))
#define PRED(k) (W->p[I->ps[k]] ^ (I->pn[k] ? ~0u : 0))
#define GATHER(cond) ({ u32 m_ = 0; for (int l = 0; l < 32; l++) m_ |= (u32)(cond) << l; m_; })
static inline float as_float(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static inline u32 as_bits(float f) { u32 x; memcpy(&x, &f, 4); return x; }

static inline void set_pred(Warp *W, int p, u32 v, u32 on) { if (p >= 0 && p != PT && p != UPT) W->p[p] = (W->p[p] & ~on) | (v & on); }

static inline float flush(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f; }  /* .FTZ: a denormal counts as zero */
static u32 to_int(float f, int is_signed) {  /* truncates and saturates; NaN gives 0x80000000 signed, 0 unsigned */
  if (f != f) return is_signed ? 0x80000000u : 0;
  double t = trunc((double)f);
  if (is_signed) return t >= 2147483647.0 ? 0x7fffffffu : t <= -2147483648.0 ? 0x80000000u : (u32)(i32)t;
  return t >= 4294967295.0 ? ~0u : t <= 0 ? 0 : (u32)t;
}
static float rounded(double x, int mode) {  /* 0 nearest, 1 up, 2 down, 3 to zero */
  float f = (float)x;
  if (mode == 1 && (double)f < x) f = nextafterf(f, INFINITY);
  if (mode == 2 && (double)f > x) f = nextafterf(f, -INFINITY);
  if (mode == 3 && fabs((double)f) > fabs(x)) f = nextafterf(f, 0);
  return f;
}
static u32 mufu(u32 bits, int which) {
  float x = as_float(bits);
  switch (which) {
    case 0: return as_bits(1.0f / x);
    case 1: return as_bits((float)(1.0 / sqrt((double)x)));
    case 2: return as_bits(sqrtf(x));
    case 3: return as_bits(exp2f(x));
    case 4: return as_bits(log2f(x));
    case 5: return as_bits(sinf(x * 6.2831853071795864769f));
    case 6: return as_bits(cosf(x * 6.2831853071795864769f));
    default: return as_bits(tanhf(x));
  }
}
static u32 lop3(u32 a, u32 b, u32 c, int table) {
  u32 z = 0;
  for (int k = 0; k < 8; k++) if (table >> k & 1) z |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return z;
}

static inline void gather(u32 *restrict d, const u32 *restrict from, const u32 *restrict index, u32 on) {
  if (on == ~0u) { LANES d[l] = from[index[l]]; }
  else for (int l = 0; l < 32; l++) if (on >> l & 1) d[l] = from[index[l]];
}

/* Lets the splits that wait for one another go on; call it when a split starts to wait or ends. */
static void reconverge(Warp *W, int state) {
  for (int i = 0; i < W->nsplits; i++) {
    Split *s = &W->split[i];
    if (s->state != state) continue;
    u32 arrived = 0;
    for (int j = 0; j < W->nsplits; j++) if (W->split[j].state == state && W->split[j].pc == s->pc) arrived |= W->split[j].lanes;
    u32 awaited = (state == AT_BSYNC ? W->b[s->barrier] : (u32)s->barrier) & W->live;
    if (awaited & ~arrived) continue;
    int pc = s->pc;
    s->lanes = arrived; s->state = RUN; s->pc = pc + 1;
    for (int j = W->nsplits - 1; j >= 0; j--)
      if (j != i && W->split[j].state == state && W->split[j].pc == pc) {
        W->split[j] = W->split[--W->nsplits];
        if (i == W->nsplits) i = j;
      }
  }
}

/* Global memory: addresses relative to the arena, checked against the shadow. 1 on a fault. */
static int global_lanes(Worker *K, const Ins *I, Warp *W, const u32 (*C)[32], u32 on, int pc, u32 *offset) {
  Job *J = K->job; int width = I->width;
  const u32 *lo = SRC(0), *hi = SRC(1), *ulo = SRC(2), *uhi = SRC(3);
  u64 shift = (u64)I->offset - J->base, limit = J->bytes - width, bad = 0;
  u64 uniform = ((u64)ulo[0] | (u64)uhi[0] << 32) + shift;
  if (on == ~0u) { LANES {
    u64 a = ((u64)lo[l] | (u64)hi[l] << 32) + uniform;
    offset[l] = (u32)(a >> 2); bad |= (u64)(a > limit) | (a & (width - 1));
  } }
  else LANES {
    u64 a = ((u64)lo[l] | (u64)hi[l] << 32) + uniform;
    offset[l] = (u32)(a >> 2); bad |= (on >> l & 1) ? (u64)(a > limit) | (a & (width - 1)) : 0;
  }
  if (!bad) return 0;
  for (int l = 0; l < 32; l++) if (on >> l & 1) {
    u64 a = ((u64)lo[l] | (u64)hi[l] << 32) + ((u64)ulo[l] | (u64)uhi[l] << 32) + (u64)I->offset;
    if (a & (width - 1)) return fail(K, FAULT_MISALIGNED, pc, l, a);
    if (a - J->base > limit) return fail(K, FAULT_GLOBAL, pc, l, a);
  }
  return 0;
}
static int check_global(Worker *K, u32 on, int pc, const u32 *word, int width, u8 need, int contiguous) {
  Job *J = K->job; u8 have = need; int n = width / 4;
  if (contiguous) { const u8 *s = J->shadow + word[0]; for (int i = 0; i < 32 * n; i++) have &= s[i]; }
  else for (int l = 0; l < 32; l++) if (on >> l & 1) for (int k = 0; k < n; k++) have &= J->shadow[word[l] + k];
  if (have == need) return 0;
  for (int l = 0; l < 32; l++) if (on >> l & 1) for (int k = 0; k < n; k++)
    if (!(J->shadow[word[l] + k] & need)) return fail(K, FAULT_GLOBAL, pc, l, J->base + 4 * ((u64)word[l] + k));
  return 0;
}

static void trace(Worker *K, int pc, u32 on, u64 base, const u32 *offset, int shift, const u32 *value, int words) {
  Job *J = K->job;
  if (J->traced >= J->ntrace) return;
  Trace *t = &J->trace[J->traced++];
  memset(t, 0, sizeof *t);
  t->pc = pc; t->warp = K->me; t->epoch = K->epoch; t->mask = on;
  for (int l = 0; l < 32; l++) if (on >> l & 1) { t->address[l] = base + ((u64)offset[l] << shift); for (int k = 0; k < words; k++) t->value[k][l] = value[32 * k + l]; }
}

/* Runs a warp until every split waits at a barrier or has ended; 1 on a fault. */
static int run_warp(Worker *K, Warp *W) {
  Job *J = K->job; const Ins *code = J->code; const u32 (*C)[32] = J->constants; Count *counts = K->count;
  for (;;) {
    int b = -1;
    for (int i = 0; i < W->nsplits; i++) if (W->split[i].state == RUN && (b < 0 || W->split[i].pc < W->split[b].pc)) b = i;
    if (b < 0) return 0;
    int pc = W->split[b].pc; u32 m = W->split[b].lanes; int nm = __builtin_popcount(m);
    for (;;) {
      const Ins *I = &code[pc]; Count *c = &counts[pc];
      u32 on = m;
      c->executed++; c->threads += nm; K->clock++;
      if (I->guard == PT && !I->guard_not) c->on += nm;
      else { on &= W->p[I->guard] ^ (I->guard_not ? ~0u : 0); c->on += __builtin_popcount(on); }
      if (I->op < OP_LDG) {
        if (!on) { pc++; continue; }
        u32 lanes = on;
        if (I->uniform) on = ~0u;
        u32 *d = W->r[I->dst];
        switch (I->op) {
        case OP_NOP: break;
        case OP_MOV: for (int k = 0; k < I->n; k++, d += 32) { const u32 *a = SRC(k); WRITE(INT(a, k)); } break;
        case OP_IADD3: { const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); WRITE(INT(a, 0) + INT(e, 1) + INT(f, 2)); } break;
        case OP_IADD3C: {
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2);
          u32 in0 = I->n > 0 ? PRED(0) : 0, in1 = I->n > 1 ? PRED(1) : 0, out1 = 0, out2 = 0;
          for (int l = 0; l < 32; l++) {
            u64 t = (u64)(a[l] ^ I->s[0].flip) + I->s[0].add + (e[l] ^ I->s[1].flip) + I->s[1].add + (f[l] ^ I->s[2].flip) + I->s[2].add + (in0 >> l & 1) + (in1 >> l & 1);
            if (on >> l & 1) d[l] = (u32)t;
            out1 |= (u32)((t >> 32) >= 1) << l; out2 |= (u32)((t >> 32) >= 2) << l;
          }
          set_pred(W, I->pdst, out1, on); set_pred(W, I->pdst2, out2, on);
        } break;
        case OP_IMAD: {
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); u32 in = I->n ? PRED(0) : 0;
          WRITE(INT(a, 0) * INT(e, 1) + INT(f, 2) + (in >> l & 1));
        } break;
        case OP_IMADWIDE: {
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2), *g = SRC(3); u32 *d1 = d + 32; u32 carry = 0, in = I->n ? PRED(0) : 0;
          u32 lo[32], hi[32];
          LANES {
            u64 product = I->sub ? (u64)((i64)(i32)INT(a, 0) * (i32)INT(e, 1)) : (u64)INT(a, 0) * INT(e, 1);
            u64 t = product + PAIR(f, g) + (in >> l & 1);
            lo[l] = (u32)t; hi[l] = (u32)(t >> 32);
          }
          if (I->pdst >= 0) carry = GATHER(((u64)lo[l] | (u64)hi[l] << 32) < ((u64)f[l] | (u64)g[l] << 32));
          WRITE(lo[l]); d = d1; WRITE(hi[l]);
          set_pred(W, I->pdst, carry, on);
        } break;
        case OP_IMADHI: {  /* the high word of IMAD.WIDE */
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2), *g = SRC(3); u32 out[32];
          LANES out[l] = ((I->sub ? (u64)((i64)(i32)INT(a, 0) * (i32)INT(e, 1)) : (u64)INT(a, 0) * INT(e, 1)) + PAIR(f, g)) >> 32;
          WRITE(out[l]);
        } break;
        case OP_LEA: {
          const u32 *a = SRC(0), *e = SRC(1); int s = I->sub;
          if (I->pdst >= 0) set_pred(W, I->pdst, GATHER(((u64)(u32)(INT(a, 0) << s) + (u32)INT(e, 1)) >> 32), on);
          WRITE((INT(a, 0) << s) + INT(e, 1));
        } break;
        case OP_LEAHI: {
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); int s = I->sub, extend = I->width; u32 in = I->n ? PRED(0) : 0;
          WRITE((u32)(((((u64)(extend ? (u32)((i32)INT(a, 0) >> 31) : f[l]) << 32) | (u32)INT(a, 0)) << s) >> 32) + INT(e, 1) + (in >> l & 1));
        } break;
        case OP_SHF: {  /* sub: 1 right, 2 high word, 4 signed, 8 wraps, 16 64-bit */
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); int s = I->sub; u32 most = s & 16 ? 63 : 32;
          if ((s & ~4) == 3) { if (s & 4) WRITE((u32)((i32)INT(f, 2) >> (INT(e, 1) > 31 ? 31 : INT(e, 1)))); else WRITE(INT(e, 1) > 31 ? 0 : INT(f, 2) >> INT(e, 1)); break; }
          if ((s & ~4) == 0) { WRITE(INT(e, 1) > 31 ? 0 : INT(a, 0) << INT(e, 1)); break; }
          u32 out[32];
          for (int l = 0; l < 32; l++) {
            u32 by = s & 8 ? INT(e, 1) & (most | 31) & (s & 16 ? 63 : 31) : INT(e, 1) > most ? most : INT(e, 1);
            u64 v = (u64)INT(a, 0) | (u64)INT(f, 2) << 32;
            if (!(s & 1)) v = by > 63 ? 0 : v << by;
            else if (!(s & 16) && (s & 2)) v = (s & 4 ? (u64)(i64)((i32)INT(f, 2) >> (by > 31 ? 31 : by)) : by > 31 ? 0 : INT(f, 2) >> by) << 32;
            else v = s & 4 ? (u64)((i64)v >> by) : v >> by;
            out[l] = s & 2 ? (u32)(v >> 32) : (u32)v;
          }
          WRITE(out[l]);
        } break;
        case OP_LOP3: {
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); int t = I->sub; u32 out[32];
          if (t == 0xc0) { LANES out[l] = INT(a, 0) & INT(e, 1); }
          else if (t == 0xfc) { LANES out[l] = INT(a, 0) | INT(e, 1); }
          else LANES out[l] = lop3(INT(a, 0), INT(e, 1), INT(f, 2), t);
          if (I->pdst >= 0) { u32 in = I->n ? PRED(0) : 0; set_pred(W, I->pdst, GATHER(out[l] != 0) | in, on); }
          WRITE(out[l]);
        } break;
        case OP_PLOP3: {
          u32 x = PRED(0), y = PRED(1), z = PRED(2);
          u32 first = lop3(x, y, z, I->sub), second = lop3(x, y, z, I->width);
          set_pred(W, I->pdst, first, on); set_pred(W, I->pdst2, second, on);
        } break;
        case OP_ISETP: {  /* sub: 0 LT 1 LE 2 GT 3 GE 4 EQ 5 NE 6 F 7 T, +8 unsigned; width: .EX; n: 0 AND 1 OR 2 XOR */
          const u32 *a = SRC(0), *e = SRC(1); u32 r = 0;
#define CMP(T, o) r = GATHER((T)INT(a, 0) o (T)INT(e, 1))
          switch (I->sub) {
            case 0: CMP(i32, <); break; case 1: CMP(i32, <=); break; case 2: CMP(i32, >); break; case 3: CMP(i32, >=); break;
            case 8: CMP(u32, <); break; case 9: CMP(u32, <=); break; case 10: CMP(u32, >); break; case 11: CMP(u32, >=); break;
            case 4: case 12: CMP(u32, ==); break; case 5: case 13: CMP(u32, !=); break; case 7: case 15: r = ~0u; break; default: break;
          }
#undef CMP
          if (I->width) {  /* the high words of a 64-bit compare; predicate 1 holds the low words' verdict */
            u32 equal = GATHER(INT(a, 0) == INT(e, 1)), low = PRED(1); int s = I->sub & 7;
            r = s == 5 ? r | low : s == 4 ? r & low : (r & ~equal) | (equal & low);
          }
          u32 q = PRED(0), not_r = ~r;
          if (I->n == 0) { r &= q; not_r &= q; } else if (I->n == 1) { r |= q; not_r |= q; } else { r ^= q; not_r ^= q; }
          set_pred(W, I->pdst, r, on); set_pred(W, I->pdst2, not_r, on);
        } break;
        case OP_IMNMX: {  /* of source 0 + source 2, and source 1 */
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); u32 least = PRED(0), out[32];
          for (int l = 0; l < 32; l++) { u32 x = INT(a, 0) + INT(f, 2), y = INT(e, 1); out[l] = ((least >> l & 1) != 0) == (I->sub ? (i32)x < (i32)y : x < y) ? x : y; }
          WRITE(out[l]);
        } break;
        case OP_SEL: { const u32 *a = SRC(0), *e = SRC(1); u32 q = PRED(0); WRITE((q >> l & 1) ? INT(a, 0) : INT(e, 1)); } break;
        case OP_P2R: { const u32 *a = SRC(0); u32 keep = (u32)I->offset; int at = I->sub;
          for (int l = 0; l < 32; l++) if (on >> l & 1) {
            u32 v = 0; for (int k = 0; k < 7; k++) v |= (W->p[I->n + k] >> l & 1) << k;
            d[l] = (a[l] & ~(keep << at)) | ((v & keep) << at);
          } } break;
        case OP_R2P: { const u32 *a = SRC(0); for (int k = 0; k < 7; k++) if (I->offset >> k & 1) set_pred(W, k, GATHER(a[l] >> (I->sub + k) & 1), on); } break;
        case OP_PRMT: { const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2);
          u32 out[32];
          for (int l = 0; l < 32; l++) { u64 v = (u64)a[l] | (u64)f[l] << 32; u32 z = 0;
            for (int k = 0; k < 4; k++) { u32 s = e[l] >> 4 * k & 15; u8 byte = v >> 8 * (s & 7); if (s & 8) byte = byte & 0x80 ? 0xff : 0; z |= (u32)byte << 8 * k; }
            out[l] = z; }
          WRITE(out[l]); } break;
        case OP_POPC: { const u32 *a = SRC(0); WRITE(__builtin_popcount(INT(a, 0))); } break;
        case OP_FLO: { const u32 *a = SRC(0); u32 out[32];
          for (int l = 0; l < 32; l++) { u32 v = INT(a, 0); if (I->sub & 1 && (i32)v < 0) v = ~v; out[l] = !v ? ~0u : I->sub & 2 ? __builtin_clz(v) : 31 - __builtin_clz(v); }
          WRITE(out[l]); } break;
        case OP_BREV: { const u32 *a = SRC(0); u32 out[32]; for (int l = 0; l < 32; l++) { u32 v = INT(a, 0), z = 0; for (int k = 0; k < 32; k++) z |= (v >> k & 1) << (31 - k); out[l] = z; } WRITE(out[l]); } break;
        case OP_BMSK: { const u32 *a = SRC(0), *e = SRC(1); u32 out[32];
          for (int l = 0; l < 32; l++) { u32 at = a[l] & (I->sub ? 31 : ~0u), n = e[l]; if (I->sub) n &= 31; u64 z = at > 31 ? 0 : ((n > 31 ? ~0ull : (1ull << n) - 1) << at); out[l] = (u32)z; }
          WRITE(out[l]); } break;
        case OP_SGXT: { const u32 *a = SRC(0), *e = SRC(1); u32 out[32];
          for (int l = 0; l < 32; l++) { u32 n = I->sub & 2 ? e[l] & 31 : e[l]; u32 v = a[l]; if (n < 32 && n) { u32 low = v & ((1u << n) - 1); out[l] = I->sub & 1 && (v >> (n - 1) & 1) ? low | ~((1u << n) - 1) : low; } else out[l] = n ? v : 0; }
          WRITE(out[l]); } break;
        case OP_IABS: { const u32 *a = SRC(0); WRITE((i32)INT(a, 0) < 0 ? -INT(a, 0) : INT(a, 0)); } break;
        case OP_I2F: { const u32 *a = SRC(0); u32 out[32]; for (int l = 0; l < 32; l++) out[l] = as_bits(rounded(I->sub ? (double)(i32)INT(a, 0) : (double)INT(a, 0), I->width)); WRITE(out[l]); } break;
        case OP_F2I: { const u32 *a = SRC(0); u32 out[32];
          for (int l = 0; l < 32; l++) { float x = FLT(a, 0); x = I->width == 0 ? rintf(x) : I->width == 1 ? ceilf(x) : I->width == 2 ? floorf(x) : x; out[l] = to_int(x, I->sub); }
          WRITE(out[l]); } break;
        case OP_MUFU: { const u32 *a = SRC(0); u32 out[32]; for (int l = 0; l < 32; l++) out[l] = mufu((a[l] & I->s[0].add) ^ I->s[0].flip, I->sub); WRITE(out[l]); } break;
        case OP_FFMA: { const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); WRITE(as_bits(__builtin_fmaf(as_float(a[l]), as_float(e[l]), as_float(f[l])))); } break;
        case OP_FFMAM: { const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2);
          if (I->sub) WRITE(as_bits(flush(__builtin_fmaf(flush(FLT(a, 0)), flush(FLT(e, 1)), flush(FLT(f, 2))))));
          else WRITE(as_bits(__builtin_fmaf(FLT(a, 0), FLT(e, 1), FLT(f, 2)))); } break;
        case OP_FMUL: { const u32 *a = SRC(0), *e = SRC(1);
          if (I->sub) WRITE(as_bits(flush(flush(FLT(a, 0)) * flush(FLT(e, 1)))));
          else WRITE(as_bits(FLT(a, 0) * FLT(e, 1))); } break;
        case OP_FADD: { const u32 *a = SRC(0), *e = SRC(1);
          if (I->sub) WRITE(as_bits(flush(flush(FLT(a, 0)) + flush(FLT(e, 1)))));
          else WRITE(as_bits(FLT(a, 0) + FLT(e, 1))); } break;
        case OP_FSETP: {  /* sub: 1 less, 2 equal, 4 greater, 8 unordered: the outcomes that count as true */
          const u32 *a = SRC(0), *e = SRC(1); u32 r = 0;
          for (int l = 0; l < 32; l++) { float x = FLT(a, 0), y = FLT(e, 1); int is = x < y ? 1 : x == y ? 2 : x > y ? 4 : 8; r |= (u32)((I->sub & is) != 0) << l; }
          u32 q = PRED(0), not_r = ~r;
          if (I->n == 0) { r &= q; not_r &= q; } else if (I->n == 1) { r |= q; not_r |= q; } else { r ^= q; not_r ^= q; }
          set_pred(W, I->pdst, r, on); set_pred(W, I->pdst2, not_r, on);
        } break;
        case OP_FCHK: {  /* whether a / b needs the slow path: operands or quotient near the ends of the range */
          const u32 *a = SRC(0), *e = SRC(1);
          set_pred(W, I->pdst, GATHER(({ int x = a[l] >> 23 & 255, y = e[l] >> 23 & 255; x == 255 || y < 3 || y > 252 || (x && (x - y > 125 || y - x > 124)) || (!x && a[l] << 1); })), on);
        } break;
        case OP_FMNMX: { const u32 *a = SRC(0), *e = SRC(1); u32 least = PRED(0), out[32];
          for (int l = 0; l < 32; l++) { float x = FLT(a, 0), y = FLT(e, 1); out[l] = as_bits(least >> l & 1 ? fminf(x, y) : fmaxf(x, y)); }
          WRITE(out[l]); } break;
        case OP_R2UR: { const u32 *a = SRC(0); u32 v = a[__builtin_ctz(lanes)]; LANES d[l] = v; } break;
        case OP_VOTE: {  /* sub: 0 ANY, 1 ALL, 2 EQ */
          u32 q = PRED(0) & lanes, all = q == lanes, any = q != 0, verdict = I->sub == 0 ? any : I->sub == 1 ? all : all || !any;
          WRITE(q);
          set_pred(W, I->pdst, verdict ? ~0u : 0, on);
        } break;
        case OP_SHFL: {  /* sub: 0 IDX, 1 UP, 2 DOWN, 3 BFLY */
          const u32 *a = SRC(0), *e = SRC(1), *f = SRC(2); u32 out[32], ok = 0;
          for (int l = 0; l < 32; l++) {
            int clamp = f[l] & 31, segment = f[l] >> 8 & 31, by = e[l] & 31, low = l & segment, high = low | (clamp & ~segment), from = l, good = 1;
            if (I->sub == 0) { from = low | (by & ~segment); good = from <= high; }
            else if (I->sub == 1) { from = l - by; good = from >= (low | (clamp & ~segment)); }
            else if (I->sub == 2) { from = l + by; good = from <= high; }
            else { from = l ^ by; good = from <= high; }
            if (!good) from = l;
            out[l] = a[from & 31]; ok |= (u32)good << l;
          }
          WRITE(out[l]); set_pred(W, I->pdst, ok, on);
        } break;
        case OP_LDC: { const u32 *a = SRC(0);
          for (int k = 0; k < I->n; k++, d += 32) for (int l = 0; l < 32; l++) if (on >> l & 1) {
            u32 at = a[l] + (u32)I->offset + 4 * k, v = 0;
            if (at + 4 <= J->bank0_bytes) memcpy(&v, J->bank0 + at, 4);
            d[l] = v;
          } } break;
        }
        pc++;
        continue;
      }
      switch (I->op) {
      case OP_LDG: case OP_STG: case OP_LDGSTS: {
        if (!on) { pc++; break; }
        u32 word[32] __attribute__((aligned(64))), address[32] __attribute__((aligned(64))); int width = I->width, n = width / 4;
        if (global_lanes(K, I, W, C, on, pc, word)) return 1;
        LANES address[l] = word[l] << 2;
        Pattern *p = pattern(&K->patterns[I->slot], address, on, width, 0, ~0);
        u32 phase = (address[__builtin_ctz(on)] & 127) >> 2;
        c->requests++; c->sectors += p->sectors[phase]; c->lines += p->lines[phase]; c->sectors_ideal += sectors_ideal(p, phase);
        if (I->op != OP_LDGSTS) c->data_wavefronts += p->wavefronts;
        if (check_global(K, on, pc, word, width, I->op == OP_STG ? WRITABLE : READABLE, p->contiguous)) return 1;
        u32 *mem = J->memory;
        if (I->op == OP_LDG) {
          u32 *d = W->r[I->dst];
          if (p->contiguous && n == 1) { memcpy(d, mem + word[0], 128); }
          else if (p->same && on == ~0u) for (int k = 0; k < n; k++, d += 32) { u32 v = mem[word[0] + k]; LANES d[l] = v; }
          else for (int k = 0; k < n; k++, d += 32) gather(d, mem + k, word, on);
        } else if (I->op == OP_STG) {
          const u32 *s = W->r[I->dst];
          for (int l = 0; l < 32; l++) if (on >> l & 1) for (int k = 0; k < n; k++) {
            u32 w = word[l] + k;
            if (J->shadow[w] & WRITTEN) return fail(K, FAULT_TWICE, pc, l, J->base + 4 * (u64)w);
            J->shadow[w] |= WRITTEN;
            mem[w] = I->dst == ROW_RZ ? 0 : s[32 * k + l];
          }
        } else {
          const u32 *a = W->r[I->ps[0]], *u = W->r[I->ps[1]]; u32 to[32] __attribute__((aligned(64)));
          for (int l = 0; l < 32; l++) { to[l] = a[l] * (u32)I->ps[2] + u[l] + (u32)I->pn[0];
            if ((on >> l & 1) && (to[l] < (u32)J->shared_low || to[l] + width > (u32)J->shared_high || to[l] & (width - 1))) return fail(K, FAULT_SHARED, pc, l, to[l]); }
          Pattern *q = pattern(&K->patterns[I->slot + 1], to, on, width, 2, ~0);
          int passes = count_copy(q, p, phase, to[__builtin_ctz(on)], width);
          c->wavefronts += passes; c->wavefronts_ideal += q->groups; c->predicted += passes; c->predicted_ideal += q->groups;
          if (touch(K, W, q, to[__builtin_ctz(on)], pc, 1, 1)) return 1;
          for (int l = 0; l < 32; l++) if (on >> l & 1) for (int k = 0; k < n; k++) K->shared[(to[l] >> 2) + k] = mem[word[l] + k];
        }
        if (J->trace && I->op != OP_LDGSTS) trace(K, pc, on, J->base, word, 2, W->r[I->dst], n);
        pc++; break; }
      case OP_LDS: case OP_STS: {
        if (!on) { pc++; break; }
        const u32 *s0 = SRC(0), *s1 = SRC(1); int width = I->width, n = width < 4 ? 1 : width / 4, store = I->op == OP_STS;
        u32 a[32] __attribute__((aligned(64))), bad = 0, scale = I->sub, shift = (u32)I->offset, low = J->shared_low, span = J->shared_high - J->shared_low - width;
        if (on == ~0u) { LANES { a[l] = s0[l] * scale + s1[l] + shift; bad |= (u32)(a[l] - low > span) | (a[l] & (width - 1)); } }
        else LANES { a[l] = s0[l] * scale + s1[l] + shift; bad |= (on >> l & 1) ? (u32)(a[l] - low > span) | (a[l] & (width - 1)) : 0; }
        if (bad || (i32)span < 0) for (int l = 0; l < 32; l++) if (on >> l & 1) {
          if (a[l] & (width - 1)) return fail(K, FAULT_MISALIGNED, pc, l, a[l]);
          if (a[l] - low > span || (i32)span < 0) return fail(K, FAULT_SHARED, pc, l, a[l]);
        }
        Pattern *p = pattern(&K->patterns[I->slot], a, on, width, store ? 2 : 1, store ? ~0 : I->target);
        c->requests++; c->wavefronts += p->wavefronts; c->wavefronts_ideal += p->groups;
        c->predicted += p->predicted; c->predicted_ideal += p->predicted_ideal;
        if (touch(K, W, p, a[__builtin_ctz(on)], pc, store, 0)) return 1;
        u32 *sh = K->shared;
        if (width < 4) {
          u32 keep = width == 1 ? 0xff : 0xffff; u32 *d = W->r[I->dst];
          for (int l = 0; l < 32; l++) if (on >> l & 1) {
            u32 at = 8 * (a[l] & 3), *w = &sh[a[l] >> 2];
            if (store) *w = (*w & ~(keep << at)) | ((I->dst == ROW_RZ ? 0 : d[l]) & keep) << at;
            else { u32 v = *w >> at & keep; if (I->n && v >> (8 * width - 1)) v |= ~keep; d[l] = v; }
          }
        } else if (store) {
          const u32 *s = W->r[I->dst];
          if (p->contiguous && n == 1) memcpy(sh + (a[0] >> 2), s, 128);
          else for (int k = 0; k < n; k++) for (int l = 0; l < 32; l++) if (on >> l & 1) sh[(a[l] >> 2) + k] = I->dst == ROW_RZ ? 0 : s[32 * k + l];
        } else {
          u32 *d = W->r[I->dst];
          if (p->contiguous && n == 1) memcpy(d, sh + (a[0] >> 2), 128);
          else if (p->same && on == ~0u) { u32 v[4]; memcpy(v, sh + (a[0] >> 2), 4 * n); for (int k = 0; k < n; k++, d += 32) LANES d[l] = v[k]; }
          else {
            u32 word[32] __attribute__((aligned(64)));
            LANES word[l] = a[l] >> 2;
            for (int k = 0; k < n; k++, d += 32) gather(d, sh + k, word, on);
          }
        }
        if (J->trace) trace(K, pc, on, 0, a, 0, W->r[I->dst], n);
        pc++; break; }
      case OP_LDL: case OP_STL: {
        if (!on) { pc++; break; }
        const u32 *s0 = SRC(0), *s1 = SRC(1); int n = I->width < 4 ? 1 : I->width / 4; u32 *d = W->r[I->dst];
        for (int l = 0; l < 32; l++) if (on >> l & 1) {
          u32 a = s0[l] + s1[l] + (u32)I->offset;
          if (a & 3 || (a >> 2) + n > (u32)J->local_words) return fail(K, FAULT_LOCAL, pc, l, a);
          for (int k = 0; k < n; k++) { u32 *w = (u32 *)W->local + ((a >> 2) + k) * 32 + l; if (I->op == OP_LDL) d[32 * k + l] = *w; else *w = I->dst == ROW_RZ ? 0 : d[32 * k + l]; }
        }
        c->requests++; pc++; break; }
      case OP_COMMIT: if (on) W->committed++; pc++; break;
      case OP_WAIT: if (on) {
        u32 upto = W->committed > (u32)I->sub ? W->committed - I->sub : 0;
        while ((i32)(upto - W->completed) > 0) W->completed_at[W->completed++ % GROUPS] = K->clock;
      } pc++; break;
      case OP_BRA: case OP_CALL: {
        u32 taken = on;
        for (int k = 0; k < I->n; k++) taken &= PRED(k);
        if (!taken) { pc++; break; }
        if (K->clock > J->budget) return fail(K, FAULT_BUDGET, pc, __builtin_ctz(taken), 0);
        if (J->stop) return fail(K, FAULT_STOPPED, pc, 0, 0);
        if (taken == m) { if (W->nsplits == 1) { pc = I->target; break; } W->split[b].pc = I->target; goto next; }
        W->split[b].pc = pc + 1; W->split[b].lanes = m & ~taken;
        W->split[W->nsplits++] = (Split){I->target, taken, RUN, 0};
        goto next; }
      case OP_BRADIV: {
        const u32 *a = SRC(0);
        pc = on && (((a[__builtin_ctz(m)] ^ I->s[0].flip) + I->s[0].add) & W->started) != m ? I->target : pc + 1;
        break; }
      case OP_RET: {
        if (!on) { pc++; break; }
        const u32 *a = SRC(0); u32 to = a[__builtin_ctz(on)] + (u32)I->offset;
        for (int l = 0; l < 32; l++) if ((on >> l & 1) && a[l] + (u32)I->offset != to) return fail(K, FAULT_RETURN, pc, l, a[l]);
        if (to % 16 || to / 16 >= (u32)J->ncode || on != m) return fail(K, FAULT_RETURN, pc, __builtin_ctz(on), to);
        W->split[b].pc = to / 16; goto next; }
      case OP_EXIT: {
        if (!on) { pc++; break; }
        W->live &= ~on; m &= ~on;
        if (m) { W->split[b].lanes = m; W->split[b].pc = pc + 1; } else W->split[b] = W->split[--W->nsplits];
        reconverge(W, AT_BSYNC); reconverge(W, AT_WARPSYNC);
        goto next; }
      case OP_BSSY: if (on) W->b[I->dst] = m; pc++; break;
      case OP_READB: {  /* sub: clears the barrier */
        u32 *d = W->r[I->dst], v = W->b[I->width];
        if (on) { WRITE(v); if (I->sub) W->b[I->width] = 0; }
        pc++; break; }
      case OP_WRITEB: { const u32 *a = SRC(0); if (on) W->b[I->width] = a[__builtin_ctz(on)]; pc++; break; }
      case OP_BREAK: if (on) { W->b[I->dst] &= ~on; W->split[b].pc = pc + 1; reconverge(W, AT_BSYNC); goto next; } pc++; break;
      case OP_BSYNC:
        if (!on || m == (W->b[I->dst] & W->live)) { pc++; break; }
        W->split[b].state = AT_BSYNC; W->split[b].barrier = I->dst; W->split[b].pc = pc;
        reconverge(W, AT_BSYNC); goto next;
      case OP_WARPSYNC: {
        const u32 *a = SRC(0); u32 awaited = a[__builtin_ctz(m)] & W->live;
        if (!on || !(awaited & ~m)) { pc++; break; }
        W->split[b].state = AT_WARPSYNC; W->split[b].barrier = (i32)awaited; W->split[b].pc = pc;
        reconverge(W, AT_WARPSYNC); goto next; }
      case OP_BAR:
        if (!on) { pc++; break; }
        W->split[b].state = AT_BAR; W->split[b].pc = pc + 1; goto next;
      default:  /* what no lane executes needs no meaning */
        if (!on) { pc++; break; }
        return fail(K, FAULT_UNKNOWN, pc, 0, 0);
      }
    }
  next:;
  }
}

/* ---- a block, and the pool of workers ----------------------------------------------------------------------- */

static int run_block(Worker *K) {
  Job *J = K->job; int nthreads = J->block[0] * J->block[1] * J->block[2], nwarps = (nthreads + 31) / 32;
  i64 x = K->block % J->grid[0], y = K->block / J->grid[0] % J->grid[1], z = K->block / J->grid[0] / J->grid[1];
  size_t words = J->shared_high / 4 + 1;
  K->clock = K->epoch = 1; K->uninitialised.kind = 0; K->npending = 0; memset(K->queued, 0, words);
  memset(K->shadow_words, 0, SHADOWS * words * 4);
  for (int w = 0; w < nwarps; w++) {
    Warp *W = &K->warps[w];
    memset(W->r, 0, sizeof W->r); memset(W->p, 0, sizeof W->p); memset(W->b, 0, sizeof W->b);
    W->p[PT] = W->p[UPT] = ~0u; W->live = 0; W->committed = W->completed = 0;
    for (int l = 0; l < 32; l++) {
      int t = w * 32 + l;
      if (t < nthreads) W->live |= 1u << l;
      u32 *s = &W->r[ROW_SPECIAL][l];
      s[0] = t % J->block[0]; s[32] = t / J->block[0] % J->block[1]; s[64] = t / J->block[0] / J->block[1];
      s[96] = (u32)x; s[128] = (u32)y; s[160] = (u32)z; s[192] = l; s[224] = w;
      s[256] = 1u << l; s[288] = (1u << l) - 1; s[320] = ((1u << l) - 1) | 1u << l; s[352] = ~((1u << l) - 1); s[384] = ~(((1u << l) - 1) | 1u << l);
    }
    W->started = W->live; W->nsplits = 1; W->split[0] = (Split){0, W->live, RUN, 0};
    if (J->local_words) memset(W->local, 0, (size_t)J->local_words * 128);
  }
  for (;;) {
    for (int w = 0; w < nwarps; w++) { K->me = w; K->warps[w].run = K->clock; if (run_warp(K, &K->warps[w])) return 1; }
    int live = 0, bar_pc = -1, bar_warp = 0, stuck = -1, gone = -1, elsewhere = -1;
    for (int w = 0; w < nwarps; w++) {
      Warp *W = &K->warps[w]; live |= W->live != 0;
      if (W->live != W->started && gone < 0) gone = w;
      for (int i = 0; i < W->nsplits; i++) {
        if (W->split[i].state != AT_BAR) { if (stuck < 0) stuck = w; }
        else if (bar_pc < 0) { bar_pc = W->split[i].pc - 1; bar_warp = w; }
        else if (W->split[i].pc - 1 != bar_pc && elsewhere < 0) elsewhere = w;
      }
    }
    if (K->uninitialised.kind) { K->fault = K->uninitialised; return 1; }
    if (!live) return 0;
    K->me = bar_warp;
    if (bar_pc < 0) { K->me = stuck < 0 ? 0 : stuck; return fail(K, FAULT_DEADLOCK, K->warps[K->me].split[0].pc, __builtin_ctz(K->warps[K->me].live), 0); }
    if (stuck >= 0 || gone >= 0 || elsewhere >= 0) {
      int w = stuck >= 0 ? stuck : gone >= 0 ? gone : elsewhere; Warp *V = &K->warps[w], *W = &K->warps[bar_warp];
      fail(K, FAULT_BARRIER, bar_pc, 0, 0);
      for (int i = 0; i < W->nsplits; i++) if (W->split[i].state == AT_BAR) { K->fault.lane = __builtin_ctz(W->split[i].lanes); break; }
      u32 missing = V->started & ~V->live; K->fault.other_warp = w; K->fault.hazard = stuck >= 0 ? 0 : gone >= 0 ? 1 : 2;
      if (stuck < 0 && gone >= 0) K->fault.other_lane = __builtin_ctz(missing);
      else for (int i = 0; i < V->nsplits; i++) if (V->split[i].state != AT_BAR || V->split[i].pc - 1 != bar_pc) {
        K->fault.other_pc = V->split[i].pc - (V->split[i].state == AT_BAR); K->fault.other_lane = __builtin_ctz(V->split[i].lanes); break; }
      return 1;
    }
    settle(K);
    K->epoch = K->clock;
    for (int w = 0; w < nwarps; w++) {
      Warp *W = &K->warps[w];
      W->split[0].lanes = W->live; W->split[0].state = RUN; W->nsplits = 1;
    }
  }
}

static void *work(void *v) {
  Worker *K = v; Job *J = K->job; size_t bytes = sizeof(Count) * J->ncode;
  while (!J->stop) {
    i64 i = __atomic_fetch_add(&J->next, 1, __ATOMIC_RELAXED);
    if (i >= J->nblocks) break;
    K->block = J->blocks[i];
    i64 weight = J->weights[i];
    K->count = weight == 1 ? K->total : K->scratch;
    if (weight != 1) memset(K->scratch, 0, bytes);
    if (run_block(K)) { __atomic_store_n(&J->next, J->nblocks, __ATOMIC_RELAXED); break; }  /* lower blocks are already handed out */
    if (weight != 1) for (size_t k = 0; k < bytes / 8; k++) ((i64 *)K->total)[k] += weight * ((i64 *)K->scratch)[k];
    __atomic_fetch_add(&J->done, 1, __ATOMIC_RELAXED);
  }
  return 0;
}

/* Executes the job's blocks on nworkers threads; counts holds ncode Count, zeroed by the caller. The fault, if any, is that of the lowest block. */
int engine_run(Job *J, Count *counts, Fault *fault) {
  int n = J->nworkers, nwarps = (J->block[0] * J->block[1] * J->block[2] + 31) / 32, ok = 1;
  Worker *K = calloc(n, sizeof *K); pthread_t *thread = calloc(n, sizeof *thread);
  size_t words = J->shared_high / 4 + 1;
  fault->kind = FAULT_NONE;
  for (int i = 0; i < n; i++) {
    K[i].job = J;
    K[i].scratch = calloc(J->ncode, sizeof(Count)); K[i].total = calloc(J->ncode, sizeof(Count));
    K[i].patterns = aligned_alloc(64, ((J->nslots + 1) * sizeof(Patterns) + 63) / 64 * 64);
    K[i].warps = aligned_alloc(64, (nwarps * sizeof(Warp) + 63) / 64 * 64);
    K[i].shared = calloc(words, 4); K[i].shadow_words = calloc(words, SHADOWS * 4); K[i].async_owner = calloc(words, 1); K[i].pending = calloc(words, 4); K[i].queued = calloc(words, 1);
    u32 **part = (u32 **)&K[i].shadow;
    for (int k = 0; k < SHADOWS; k++) part[k] = K[i].shadow_words + k * words;
    K[i].local = calloc((size_t)nwarps * J->local_words + 1, 128);
    ok &= K[i].scratch && K[i].total && K[i].patterns && K[i].warps && K[i].shared && K[i].shadow_words && K[i].async_owner && K[i].pending && K[i].queued && K[i].local;
    if (ok) { memset(K[i].patterns, 0, (J->nslots + 1) * sizeof(Patterns)); memset(K[i].warps, 0, nwarps * sizeof(Warp)); }
    for (int w = 0; ok && w < nwarps; w++) K[i].warps[w].local = (i32 *)(K[i].local + (size_t)w * J->local_words * 32);
  }
  if (!ok) fault->kind = FAULT_MEMORY;
  else {
    int started = 1;
    for (int i = 1; i < n; i++) if (pthread_create(&thread[started], 0, work, &K[i]) == 0) started++;
    work(&K[0]);
    for (int i = 1; i < started; i++) pthread_join(thread[i], 0);
    for (int i = 0; i < n; i++) {
      Fault *f = &K[i].fault;
      if (f->kind && (!fault->kind || fault->kind == FAULT_STOPPED || (f->kind != FAULT_STOPPED && f->block < fault->block))) *fault = *f;
      for (size_t k = 0; k < J->ncode * sizeof(Count) / 8; k++) ((i64 *)counts)[k] += ((i64 *)K[i].total)[k];
    }
  }
  for (int i = 0; i < n; i++) { free(K[i].scratch); free(K[i].total); free(K[i].patterns); free(K[i].warps); free(K[i].shared); free(K[i].shadow_words); free(K[i].async_owner); free(K[i].pending); free(K[i].queued); free(K[i].local); }
  free(K); free(thread);
  return fault->kind;
}
/* One access by itself: the counts of a Count from `requests` on, for 32 addresses. kind: 0 global, 1 shared load, 2 shared store. */
void engine_access(const u32 *address, u32 mask, i32 width, i32 kind, i32 *out) {
  memset(out, 0, 9 * sizeof *out);
  if (!mask) return;
  Patterns *set = aligned_alloc(64, (sizeof *set + 63) / 64 * 64);
  memset(set, 0, sizeof *set);
  Pattern *p = pattern(set, address, mask, width, kind, ~0);
  u32 phase = (address[__builtin_ctz(mask)] & 127) >> 2;
  out[0] = 1; out[1] = kind ? 0 : p->sectors[phase]; out[2] = kind ? 0 : p->lines[phase]; out[3] = kind ? 0 : sectors_ideal(p, phase); out[4] = kind ? p->wavefronts : 0; out[5] = kind ? p->groups : 0;
  out[6] = kind ? p->predicted : 0; out[7] = kind ? p->predicted_ideal : 0; out[8] = p->wavefronts;
  free(set);
}
void engine_sizes(i32 *out) { out[0] = sizeof(Ins); out[1] = sizeof(Job); out[2] = sizeof(Count); out[3] = sizeof(Fault); out[4] = sizeof(Trace); }
