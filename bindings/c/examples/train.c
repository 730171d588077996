/*
 * Two processes train one linear model over a pair of pipes. Each has half of the data; in each step each sends the top
 * 5 % of its gradient and keeps the rest for later steps. The exchange says what to send and takes what arrives, and
 * both end with the same bits.
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

/* Memory for an object, out of one array. What malloc returns would do as well. Only the exchange allocates. */
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

/* The message at the front of the pipe: its tag, its length, its bytes. */
static void receive(gw_exchange *exchange, unsigned from, int pipe) {
  static uint8_t bytes[GW_FRAME_BOUND(WEIGHTS)];
  uint8_t tag[GW_TAG_BYTES];
  uint32_t length;
  read_all(pipe, tag, sizeof tag);
  read_all(pipe, &length, sizeof length);
  if (length > sizeof bytes) exit(1);
  read_all(pipe, bytes, length);
  check(gw_exchange_receive(exchange, from, tag, bytes, length));
}

/* Sends every message that is queued. */
static void send_queued(gw_exchange *exchange, int pipe) {
  uint8_t tag[GW_TAG_BYTES];
  const uint8_t *bytes;
  uint64_t number;
  uint32_t receiver, length;
  size_t count;
  for (;;) {
    check(gw_exchange_outgoing(exchange, &number, &receiver, tag, &bytes, &count));
    if (!bytes) return;
    length = (uint32_t)count;
    write_all(pipe, tag, sizeof tag);
    write_all(pipe, &length, sizeof length);
    write_all(pipe, bytes, count);
    check(gw_exchange_sent(exchange, number));
  }
}

/* One step of both ranks: the mean of their gradients, the same bits at both. These pipes fail only with their process,
 * so nobody needs a clock. */
static void mean_of_both(gw_exchange *exchange, unsigned rank, uint64_t step, const float *gradient, float *mean,
                         gw_memory *memory, int to, int from) {
  const uint32_t members[RANKS] = {0, 1};
  uint32_t progress = GW_WORKED;
  int is_encoded = 0;
  check(gw_exchange_begin(exchange, rank, members, RANKS, 0, 1, SEED, step, memory, 0, GW_NEVER));
  while (!is_encoded || progress != GW_DONE) {
    send_queued(exchange, to);
    if (progress == GW_WAITING) receive(exchange, 1 - rank, from);
    if (!is_encoded) {
      check(gw_exchange_encode(exchange, gradient, WEIGHTS, 0, &progress));
      is_encoded = progress == GW_DONE;
      if (is_encoded) progress = GW_WORKED;
    } else {
      check(gw_exchange_complete(exchange, mean, WEIGHTS, 0, GW_NEVER, &progress));
    }
  }
}

static int train(unsigned rank, int to, int from) {
  float model[WEIGHTS] = {0}, gradient[WEIGHTS], mean[WEIGHTS];
  size_t size, bytes, sent = 0;
  gw_codec *codec;
  gw_layout *layout;
  gw_memory *memory;
  gw_exchange *exchange;
  check(gw_codec_init(memory_of(gw_codec_size()), gw_codec_size(), "topk:density=0.05", &codec));
  check(gw_layout_init(memory_of(gw_layout_size()), gw_layout_size(), WEIGHTS, &layout));
  check(gw_memory_size(codec, layout, &size));
  check(gw_memory_init(memory_of(size), size, codec, layout, &memory));
  check(gw_exchange_new(codec, layout, GW_ROUTE_ALL_GATHER, &exchange));

  double first = 0, loss = 0;
  for (uint64_t step = 0; step < STEPS; step++) {
    loss = loss_of(rank, model, gradient);
    if (step == 0) first = loss;
    mean_of_both(exchange, rank, step, gradient, mean, memory, to, from);
    for (int i = 0; i < WEIGHTS; i++) model[i] -= 0.01f * mean[i];
    check(gw_exchange_report(exchange, NULL, &bytes, NULL));
    sent += bytes;
  }
  gw_exchange_free(exchange);
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
