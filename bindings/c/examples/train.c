/*
 * Two processes train one linear model over a pair of pipes. Each has half of the data; in each step each sends the top
 * 5 % of its gradient, keeps the rest for later steps, and adds both frames in the order of the ranks. Both end with
 * the same bits.
 */
#define _POSIX_C_SOURCE 200809L
#include <gradwire.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WEIGHTS = 200, SAMPLES = 64, STEPS = 400, RANKS = 2 };
static const uint64_t SEED = 7;

static void check(gw_result result) {
  if (result != GW_OK) {
    fprintf(stderr, "%s: %s\n", gw_result_name(result), gw_result_text(result));
    exit(1);
  }
}

/* Memory for an object, out of one array. What malloc returns would do as well. */
static void *memory_of(size_t bytes) {
  static uint64_t all[4096];
  static size_t used = 0;
  uint64_t *memory = all + used;
  used += (bytes + sizeof *all - 1) / sizeof *all;
  if (used > sizeof all / sizeof *all) exit(1);
  return memory;
}

/* A number from -1 to 1 that depends on its place alone: both processes see the same data without exchanging it. */
static float draw(uint32_t what, uint64_t place) {
  uint64_t bits;
  check(gw_draw(SEED, 0, GW_ALL_RANKS, what, place, &bits));
  return (float)(bits >> 40) / 8388608.0f - 1.0f;
}

static float input(unsigned rank, int sample, int weight) {
  return draw(1 + rank, (uint64_t)sample * WEIGHTS + (uint64_t)weight);
}

/* Half the squared error of this rank's samples, and its gradient. */
static double loss_of(unsigned rank, const float *model, float *gradient) {
  double loss = 0;
  memset(gradient, 0, WEIGHTS * sizeof *gradient);
  for (int sample = 0; sample < SAMPLES; sample++) {
    float error = 0;
    for (int i = 0; i < WEIGHTS; i++) error += input(rank, sample, i) * (model[i] - draw(0, (uint64_t)i));
    for (int i = 0; i < WEIGHTS; i++) gradient[i] += error * input(rank, sample, i) / SAMPLES;
    loss += 0.5 * error * error / SAMPLES;
  }
  return loss;
}

static void write_all(int to, const void *from, size_t bytes) {
  const char *at = from;
  while (bytes > 0) {
    ssize_t n = write(to, at, bytes);
    if (n <= 0) exit(1);
    at += n, bytes -= (size_t)n;
  }
}

static void read_all(int from, void *to, size_t bytes) {
  char *at = to;
  while (bytes > 0) {
    ssize_t n = read(from, at, bytes);
    if (n <= 0) exit(1);
    at += n, bytes -= (size_t)n;
  }
}

/* One frame off a stream: its header says how long it is, and how long it may be is known. */
static size_t read_frame(int from, uint8_t *frame, size_t room) {
  uint64_t length;
  read_all(from, frame, GW_HEADER_BYTES);
  check(gw_frame_length(frame, GW_HEADER_BYTES, &length));
  if (length > room) exit(1);
  read_all(from, frame + GW_HEADER_BYTES, (size_t)length - GW_HEADER_BYTES);
  return (size_t)length;
}

/* Every object lies in an array of this program, so there is nothing to free. */
static int train(unsigned rank, int to, int from) {
  static uint8_t frames[RANKS][GW_FRAME_BOUND(WEIGHTS)];
  float model[WEIGHTS] = {0}, gradient[WEIGHTS], sum[WEIGHTS];
  size_t bytes[RANKS], size, sent = 0;
  gw_codec *codec;
  gw_layout *layout;
  gw_encoder *encoder;
  gw_memory *memory;
  check(gw_codec_init(memory_of(gw_codec_size()), gw_codec_size(), "topk:density=0.05", &codec));
  check(gw_layout_init(memory_of(gw_layout_size()), gw_layout_size(), WEIGHTS, &layout));
  check(gw_encoder_size(codec, layout, &size));
  check(gw_encoder_init(memory_of(size), size, codec, layout, &encoder));
  check(gw_encoder_set_source(encoder, SEED, rank));
  check(gw_memory_size(codec, layout, &size));
  check(gw_memory_init(memory_of(size), size, codec, layout, &memory));

  double first = 0, loss = 0;
  for (uint64_t step = 0; step < STEPS; step++) {
    loss = loss_of(rank, model, gradient);
    if (step == 0) first = loss;
    check(gw_encode(encoder, step, gradient, WEIGHTS, memory, frames[rank], sizeof frames[rank], &bytes[rank]));
    write_all(to, frames[rank], bytes[rank]);
    bytes[1 - rank] = read_frame(from, frames[1 - rank], sizeof frames[1 - rank]);
    memset(sum, 0, sizeof sum);
    for (unsigned i = 0; i < RANKS; i++) check(gw_add(frames[i], bytes[i], layout, 1.0f, sum, WEIGHTS));
    for (int i = 0; i < WEIGHTS; i++) model[i] -= 0.01f * sum[i] / RANKS;
    sent += bytes[rank];
  }
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < WEIGHTS; i++) {
    uint32_t bits;
    memcpy(&bits, &model[i], sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  printf("rank %u: loss %.3f to %.3f, %.0f bytes a step instead of %zu, model %016llx\n", rank, first, loss,
         (double)sent / STEPS, sizeof gradient, (unsigned long long)hash);
  fflush(stdout);
  uint64_t other;
  write_all(to, &hash, sizeof hash);
  read_all(from, &other, sizeof other);
  return hash == other && loss < first / 2 && sent < STEPS * sizeof gradient / 4 ? 0 : 1;
}

int main(void) {
  int up[2], down[2], status;
  if (pipe(up) || pipe(down)) return 1;
  pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) return train(1, up[1], down[0]);
  int failed = train(0, down[1], up[0]);
  return waitpid(child, &status, 0) != child || status != 0 || failed;
}
