/*
 * Two ranks in one program reduce the payloads of linear codecs themselves: same means, conservation, what was given up,
 * and calls out of order.
 */
#include <gradwire.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) result_is(call, GW_OK, #call, __LINE__)
#define RESULT(call, expected) result_is(call, expected, #call, __LINE__)
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void expect(int holds, const char *what, int line) {
  if (!holds) {
    printf("line %d does not hold: %s\n", line, what);
    exit(1);
  }
}

static void result_is(gw_result result, gw_result expected, const char *what, int line) {
  if (result != expected) {
    printf("line %d: %s is %s instead of %s\n", line, what, gw_result_name(result), gw_result_name(expected));
    exit(1);
  }
}

enum { ROWS = 20, COLUMNS = 12, BIAS = 12, N = ROWS * COLUMNS + BIAS, RANKS = 2 };
static gw_codec *codec;
static gw_layout *layout;
static gw_rounds *rounds[RANKS];
static gw_memory *memories[RANKS];
static float gradients[RANKS][N], means[RANKS][N];

/* Both payloads become their reduction. */
static void reduce(void) {
  uint32_t kind[RANKS];
  void *payload[RANKS];
  size_t count[RANKS];
  for (int i = 0; i < RANKS; i++) OK(gw_rounds_payload(rounds[i], &kind[i], &payload[i], &count[i]));
  EXPECT(kind[0] == kind[1] && count[0] == count[1]);
  float *a = payload[0], *b = payload[1];
  int32_t *c = payload[0], *d = payload[1];
  uint32_t *e = payload[0], *f = payload[1];
  for (size_t j = 0; j < count[0]; j++) {
    switch (kind[0]) {
      case GW_SUM_F32: a[j] = b[j] = a[j] + b[j]; break;
      case GW_MAX_F32: a[j] = b[j] = a[j] > b[j] ? a[j] : b[j]; break;
      case GW_SUM_I32: c[j] = d[j] = c[j] + d[j]; break;
      case GW_MIN_I32: c[j] = d[j] = c[j] < d[j] ? c[j] : d[j]; break;
      case GW_AND_U32: e[j] = f[j] = e[j] & f[j]; break;
      default: EXPECT(!"a reduction that no codec of the list has");
    }
  }
}

static void make(const char *spelling) {
  uint32_t can;
  OK(gw_codec_new(spelling, &codec));
  OK(gw_codec_capabilities(codec, &can));
  EXPECT(can & GW_CAN_SUM);
  for (uint32_t i = 0; i < RANKS; i++) {
    OK(gw_rounds_new(codec, layout, RANKS, &rounds[i]));
    OK(gw_rounds_set_source(rounds[i], 5, i));
    memories[i] = NULL;
    if (can & GW_CAN_KEEP) OK(gw_memory_new(codec, layout, &memories[i]));
    for (int j = 0; j < N; j++) gradients[i][j] = (float)((j * 37 + (int)i * 11) % 61 - 30) / 8;
  }
}

static void unmake(void) {
  for (int i = 0; i < RANKS; i++) gw_rounds_free(rounds[i]), gw_memory_free(memories[i]);
  gw_codec_free(codec);
}

static void begin(size_t unit, uint64_t step) {
  for (int i = 0; i < RANKS; i++) OK(gw_rounds_begin(rounds[i], unit, step, gradients[i], N, memories[i]));
}

static int advance(void) {
  uint32_t more[RANKS];
  for (int i = 0; i < RANKS; i++) OK(gw_rounds_advance(rounds[i], means[i], N, &more[i]));
  EXPECT(more[0] == more[1]);
  return more[0] != 0;
}

/* The mean is near that of the gradients, or what is missing is in the memories. */
static void mean_of(const char *spelling, double tolerance) {
  size_t units;
  const float *kept[RANKS] = {NULL, NULL};
  make(spelling);
  OK(gw_rounds_units(rounds[0], &units));
  for (size_t unit = 0; unit < units; unit++) {
    begin(unit, 0);
    do reduce();
    while (advance());
  }
  EXPECT(memcmp(means[0], means[1], sizeof means[0]) == 0);
  for (int i = 0; i < RANKS && memories[i]; i++) OK(gw_memory_residual(memories[i], &kept[i], NULL));
  for (int j = 0; j < N; j++) {
    double left = gradients[0][j] + gradients[1][j] - RANKS * (double)means[0][j];
    if (kept[0]) left -= kept[0][j] + kept[1][j];
    EXPECT(fabs(left) <= tolerance);
  }
  unmake();
}

/* Rounds that are given up, before or after the mean, leave residual + gradient. */
static void abandoned(const char *spelling, int is_finished) {
  const float *kept;
  make(spelling);
  begin(0, 0);
  if (is_finished) {
    do reduce();
    while (advance());
  }
  for (int i = 0; i < RANKS; i++) {
    OK(gw_rounds_abandon(rounds[i]));
    RESULT(gw_rounds_abandon(rounds[i]), GW_ERROR_NO_ROUND);
    OK(gw_memory_residual(memories[i], &kept, NULL));
    EXPECT(memcmp(kept, gradients[i], ROWS * COLUMNS * sizeof(float)) == 0);
  }
  unmake();
}

static void wrong_calls(void) {
  uint32_t kind, more;
  void *payload;
  size_t count;
  gw_rounds *other;
  gw_codec *topk;
  uint64_t space[4];
  OK(gw_codec_new("topk", &topk));
  RESULT(gw_rounds_new(topk, layout, RANKS, &other), GW_EXCHANGE_NOT_LINEAR);
  RESULT(gw_rounds_size(topk, layout, RANKS, &count), GW_EXCHANGE_NOT_LINEAR);
  make("powersgd:rank=1");
  RESULT(gw_rounds_payload(rounds[0], &kind, &payload, &count), GW_ERROR_NO_ROUND);
  RESULT(gw_rounds_advance(rounds[0], means[0], N, &more), GW_ERROR_NO_ROUND);
  RESULT(gw_rounds_abandon(rounds[0]), GW_ERROR_NO_ROUND);
  RESULT(gw_rounds_begin(rounds[0], 99, 0, gradients[0], N, memories[0]), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_rounds_begin(rounds[0], 0, 0, gradients[0], N - 1, memories[0]), GW_ERROR_WRONG_LENGTH);
  RESULT(gw_rounds_begin(rounds[0], 0, 0, gradients[0], N, NULL), GW_ENCODE_MEMORY_INCOMPLETE);
  RESULT(gw_rounds_begin(rounds[0], 0, 0, NULL, N, memories[0]), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_begin(NULL, 0, 0, gradients[0], N, memories[0]), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_init(space, sizeof space, codec, layout, RANKS, &other), GW_ERROR_OBJECT_TOO_SMALL);
  RESULT(gw_rounds_init(NULL, sizeof space, codec, layout, RANKS, &other), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_new(codec, layout, RANKS, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_set_source(rounds[0], 1, RANKS), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_rounds_new(codec, layout, 0, &other), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_rounds_new(codec, layout, GW_RANKS + 1, &other), GW_ERROR_OUT_OF_RANGE);
  RESULT(gw_rounds_units(rounds[0], NULL), GW_ERROR_NULL_POINTER);
  begin(0, 0);
  RESULT(gw_rounds_payload(rounds[0], NULL, &payload, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_payload(rounds[0], &kind, NULL, &count), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_payload(rounds[0], &kind, &payload, NULL), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_advance(rounds[0], means[0], N - 1, &more), GW_ERROR_WRONG_LENGTH);
  RESULT(gw_rounds_advance(rounds[0], NULL, N, &more), GW_ERROR_NULL_POINTER);
  RESULT(gw_rounds_advance(rounds[0], means[0], N, NULL), GW_ERROR_NULL_POINTER);
  reduce();
  EXPECT(advance());
  gradients[0][3] = INFINITY;
  RESULT(gw_rounds_begin(rounds[0], 0, 0, gradients[0], N, memories[0]), GW_ENCODE_NON_FINITE_INPUT);
  RESULT(gw_rounds_payload(rounds[0], &kind, &payload, &count), GW_ERROR_NO_ROUND);
  RESULT(gw_rounds_units((gw_rounds *)memories[0], &count), GW_ERROR_NOT_AN_OBJECT);
  unmake();
  gw_codec_free(topk);
}

int main(void) {
  const char *names[] = {"weight", "bias"};
  const size_t ranks[] = {2, 1}, dims[] = {ROWS, COLUMNS, BIAS};
  OK(gw_layout_new(2, names, ranks, dims, 3, &layout));
  mean_of("none", 0);
  mean_of("maxnorm:bits=8", 2 * 4.0 / 127);
  mean_of("randomk:density=0.25", 1e-6);
  mean_of("randomk:density=0.25,unit=tensor", 1e-6);
  mean_of("powersgd:rank=2", 1e-4);
  abandoned("powersgd:rank=1", 0);
  abandoned("powersgd:rank=1", 1);
  abandoned("randomk:density=0.5,unit=tensor", 1);
  wrong_calls();
  gw_layout_free(layout);
  return 0;
}
