/*
 * What the examples do not show: packets, void frames, saved memories, give-back, formats, density, warm-up, and that a
 * frame of this interface is the golden frame of the repository: api tests/golden/none.bin
 */
#include <gradwire.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) expect((call) == GW_OK, #call, __LINE__)
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static void expect(int holds, const char *what, int line) {
  if (!holds) {
    printf("line %d does not hold: %s\n", line, what);
    exit(1);
  }
}

enum { N = 1000 };
static float values[N], sum[N], residual[N];
static uint8_t frame[GW_FRAME_BOUND(N)];
static size_t bytes;

static void setup(const char *spelling, gw_layout *layout, gw_codec **codec, gw_encoder **encoder, gw_memory **memory) {
  OK(gw_codec_new(spelling, codec));
  OK(gw_encoder_new(*codec, layout, encoder));
  OK(gw_encoder_set_source(*encoder, 1, 0));
  if (memory) OK(gw_memory_new(*codec, layout, memory));
}

static const float *kept(const gw_memory *memory) {
  const float *at;
  size_t count;
  OK(gw_memory_residual(memory, &at, &count));
  EXPECT(count == N);
  return at;
}

/* Sent and kept are residual + gradient, bit for bit; and giving back restores it. */
static void error_feedback(gw_layout *layout) {
  gw_codec *codec;
  gw_encoder *encoder;
  gw_memory *memory, *loaded;
  gw_frame *parsed;
  uint8_t *saved;
  size_t needed, again;
  uint64_t step;
  double norm, halved;
  setup("topk:density=0.01,values=q8", layout, &codec, &encoder, &memory);
  OK(gw_memory_new(codec, layout, &loaded));
  for (uint64_t i = 0; i < 5; i++) {
    memcpy(residual, kept(memory), sizeof residual);
    OK(gw_encode(encoder, i, values, N, memory, frame, sizeof frame, &bytes));
    memset(sum, 0, sizeof sum);
    OK(gw_add(frame, bytes, layout, 1, sum, N));
    for (int j = 0; j < N; j++) EXPECT(sum[j] + kept(memory)[j] == residual[j] + values[j]);
  }
  /* A memory goes on bit for bit after it was saved and loaded. */
  EXPECT(gw_memory_save(memory, NULL, 0, &needed) == GW_ENCODE_BUFFER_TOO_SMALL);
  saved = malloc(needed);
  EXPECT(saved != NULL);
  EXPECT(gw_memory_save(memory, saved, needed - 1, &again) == GW_ENCODE_BUFFER_TOO_SMALL && again == needed);
  OK(gw_memory_save(memory, saved, needed, &again));
  EXPECT(again == needed);
  EXPECT(gw_memory_load(loaded, saved, needed - 1) != GW_OK && kept(loaded)[0] == 0);
  OK(gw_memory_load(loaded, saved, needed));
  EXPECT(memcmp(kept(loaded), kept(memory), sizeof residual) == 0);
  free(saved);

  OK(gw_frame_new(frame, bytes, layout, NULL, &parsed));
  OK(gw_frame_step(parsed, &step));
  EXPECT(step == 4);
  OK(gw_memory_give_back(memory, parsed));
  for (int j = 0; j < N; j++) EXPECT(kept(memory)[j] == residual[j] + values[j]);
  OK(gw_memory_give_back(loaded, parsed));
  EXPECT(memcmp(kept(loaded), kept(memory), sizeof residual) == 0);
  OK(gw_frame_free(parsed));

  OK(gw_memory_norm(memory, &norm));
  OK(gw_memory_decay(memory, 0.5f));
  OK(gw_memory_norm(memory, &halved));
  EXPECT(halved == norm / 2);
  OK(gw_memory_rescale(memory, 2));
  OK(gw_memory_norm(memory, &halved));
  EXPECT(halved == norm);
  OK(gw_memory_clear(memory));
  OK(gw_memory_keep(memory, values, N));
  EXPECT(memcmp(kept(memory), values, sizeof values) == 0);
  gw_memory_free(loaded), gw_memory_free(memory), gw_encoder_free(encoder), gw_codec_free(codec);
}

struct packets {
  gw_layout *layout;
  size_t count, most;
};

static void take_packet(void *context, const uint8_t *packet, size_t n) {
  struct packets *packets = context;
  packets->count++;
  if (n > packets->most) packets->most = n;
  OK(gw_add(packet, n, packets->layout, 1, sum, N));
}

static void packets(gw_layout *layout) {
  struct packets seen = {layout, 0, 0};
  gw_codec *codec;
  gw_encoder *encoder;
  gw_memory *memory;
  uint8_t packet[200];
  uint32_t can;
  setup("topk:density=0.2,max_packet_bytes=200", layout, &codec, &encoder, &memory);
  OK(gw_codec_capabilities(codec, &can));
  EXPECT(can == (GW_CAN_ENCODE | GW_CAN_KEEP | GW_CAN_EXACT | GW_CAN_DENSITY | GW_CAN_PACKETS));
  memset(sum, 0, sizeof sum);
  EXPECT(gw_encode_packets(encoder, 0, values, N, memory, packet, 199, take_packet, &seen, &bytes) ==
         GW_ENCODE_BUFFER_TOO_SMALL);
  EXPECT(seen.count == 0 && bytes == 200);
  OK(gw_encode_packets(encoder, 0, values, N, memory, packet, bytes, take_packet, &seen, &bytes));
  EXPECT(bytes > 3 * 200 && bytes <= seen.count * seen.most);
  EXPECT(seen.count > 3 && seen.most <= 200);
  for (int j = 0; j < N; j++) EXPECT(sum[j] + kept(memory)[j] == values[j]);
  printf("%zu packets of at most %zu bytes\n", seen.count, seen.most);
  gw_memory_free(memory), gw_encoder_free(encoder), gw_codec_free(codec);
}

/* Small whole numbers are the same in all three formats, so the frames are too. */
static void formats(gw_layout *layout) {
  static uint16_t half[N], brain[N];
  static uint8_t others[2][GW_FRAME_BOUND(N)];
  size_t n[2];
  gw_codec *codec;
  gw_encoder *encoder;
  setup("qsgd:bits=4", layout, &codec, &encoder, NULL);
  for (int j = 0; j < N; j++) {
    uint32_t bits;
    values[j] = (float)(1 << j % 5);
    memcpy(&bits, &values[j], sizeof bits);
    brain[j] = (uint16_t)(bits >> 16);
    half[j] = (uint16_t)((15 + j % 5) << 10);
  }
  OK(gw_encode(encoder, 8, values, N, NULL, frame, sizeof frame, &bytes));
  OK(gw_encode_f16(encoder, 8, half, N, NULL, others[0], sizeof others[0], &n[0]));
  OK(gw_encode_bf16(encoder, 8, brain, N, NULL, others[1], sizeof others[1], &n[1]));
  for (int i = 0; i < 2; i++) EXPECT(n[i] == bytes && memcmp(frame, others[i], bytes) == 0);
  /* Another rank, seed or step draws other numbers; the same ones draw the same. */
  OK(gw_encoder_set_source(encoder, 1, 1));
  OK(gw_encode(encoder, 8, values, N, NULL, others[0], sizeof others[0], &n[0]));
  EXPECT(n[0] != bytes || memcmp(frame, others[0], bytes) != 0);
  OK(gw_encoder_set_source(encoder, 1, 0));
  OK(gw_encoder_set_divide_by_senders(encoder, 1));
  OK(gw_encode(encoder, 8, values, N, NULL, others[0], sizeof others[0], &n[0]));
  EXPECT(n[0] == bytes && frame[4] == 0 && others[0][4] == 1);
  OK(gw_add(others[0], n[0], layout, 1, sum, N));
  gw_encoder_free(encoder), gw_codec_free(codec);
}

static size_t held(const uint8_t *from, size_t n) {
  uint64_t space[32];
  gw_outline *outline;
  size_t start, elements, count, units, body;
  EXPECT(gw_outline_size() <= sizeof space);
  OK(gw_outline_init(space, sizeof space, from, n, NULL, &outline));
  OK(gw_outline_units(outline, &units));
  OK(gw_outline_unit(outline, 0, &start, &elements, &count, &body));
  EXPECT(units == 1 && start == 0 && elements == N && body < n);
  return count;
}

/* The density is that of the spelling, of the caller, or of the epoch. */
static void densities(gw_layout *layout) {
  gw_codec *codec;
  gw_encoder *encoder;
  gw_memory *memory;
  double density;
  size_t bound;
  setup("topk:density=0.01,warmup=4", layout, &codec, &encoder, &memory);
  OK(gw_codec_density(codec, &density));
  EXPECT(fabs(density - 0.01) < 1e-9);
  OK(gw_encode(encoder, 0, values, N, memory, frame, sizeof frame, &bytes));
  EXPECT(held(frame, bytes) == 10);
  OK(gw_encoder_set_density(encoder, 0.05));
  OK(gw_encoder_frame_bound(encoder, &bound));
  OK(gw_encode(encoder, 0, values, N, memory, frame, bound, &bytes));
  EXPECT(held(frame, bytes) == 50);
  OK(gw_encoder_set_epoch(encoder, 0));
  OK(gw_encode(encoder, 0, values, N, memory, frame, sizeof frame, &bytes));
  EXPECT(held(frame, bytes) > 50);
  OK(gw_encoder_set_epoch(encoder, 4));
  OK(gw_encode(encoder, 0, values, N, memory, frame, sizeof frame, &bytes));
  EXPECT(held(frame, bytes) == 10);
  gw_memory_free(memory), gw_encoder_free(encoder), gw_codec_free(codec);
}

/* What a constructor makes is what the spelling makes. */
static void constructor(gw_layout *layout, gw_codec *made, const char *spelling) {
  static uint8_t others[GW_FRAME_BOUND(N)];
  char text[64];
  gw_codec *codec;
  gw_encoder *encoder, *small;
  gw_memory *memory = NULL, *other = NULL;
  uint32_t can, could;
  size_t n, size, expected;
  OK(gw_codec_new(spelling, &codec));
  OK(gw_codec_spelling(made, text, sizeof text, NULL));
  EXPECT(strcmp(text, spelling) == 0);
  OK(gw_codec_capabilities(codec, &can));
  OK(gw_codec_capabilities(made, &could));
  EXPECT(can == could);
  OK(gw_encoder_size(codec, layout, &expected));
  OK(gw_encoder_size(made, layout, &size));
  EXPECT(size == expected);
  OK(gw_encoder_new(codec, layout, &encoder));
  OK(gw_encoder_new(made, layout, &small));
  if (can & GW_CAN_KEEP) {
    OK(gw_memory_new(codec, layout, &memory));
    OK(gw_memory_new(made, layout, &other));
  }
  for (uint64_t step = 0; step < 3; step++) {
    OK(gw_encode(encoder, step, values, N, memory, frame, sizeof frame, &bytes));
    OK(gw_encode(small, step, values, N, other, others, sizeof others, &n));
    EXPECT(n == bytes && memcmp(frame, others, n) == 0);
    if (memory) EXPECT(memcmp(kept(memory), kept(other), sizeof values) == 0);
  }
  gw_memory_free(memory), gw_memory_free(other), gw_encoder_free(encoder), gw_encoder_free(small), gw_codec_free(codec);
}

static void constructors(gw_layout *layout) {
  uint64_t at[32];
  gw_codec *codec;
  OK(gw_topk_init(at, sizeof at, GW_DENSITY(0.02), &codec));
  constructor(layout, codec, "topk:density=0.02");
  OK(gw_qsgd_init(at, sizeof at, 3, &codec));
  constructor(layout, codec, "qsgd:bits=3,entropy=fixed");
  OK(gw_none_init(at, sizeof at, &codec));
  constructor(layout, codec, "none");
  EXPECT(gw_topk_init(at, sizeof at, 0, &codec) == GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_topk_init(at, sizeof at, 1000000001, &codec) == GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_qsgd_init(at, sizeof at, 1, &codec) == GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_qsgd_init(at, sizeof at, 258, &codec) == GW_ERROR_OUT_OF_RANGE);
  EXPECT(gw_topk_init(at, 8, 1, &codec) == GW_ERROR_OBJECT_TOO_SMALL);
  EXPECT(gw_topk_init(NULL, 8, 1, &codec) == GW_ERROR_NULL_POINTER);
}

static void names_and_numbers(void) {
  gw_codec *codec;
  gw_layout *flat, *shaped;
  char text[64];
  const char *names[] = {"weight", "bias"};
  size_t ranks[] = {2, 1}, dims[] = {3, 4, 4}, needed, elements;
  uint64_t a, b;
  EXPECT(gw_version_number() == GW_VERSION_NUMBER);
  EXPECT(gw_format_version_min() == 1 && gw_format_version_max() >= gw_format_version_min());
  for (size_t n = 0; n < 5000; n += 7) EXPECT(gw_frame_bound(n) == GW_FRAME_BOUND(n));
  OK(gw_codec_new("topk:index=auto,density=0.010", &codec));
  OK(gw_codec_spelling(codec, text, sizeof text, &needed));
  EXPECT(strcmp(text, "topk:density=0.01") == 0 && needed == strlen(text) + 1);
  OK(gw_codec_set_density(codec, 0.5));
  OK(gw_codec_spelling(codec, text, sizeof text, NULL));
  EXPECT(strcmp(text, "topk:density=0.5") == 0);
  OK(gw_codec_free(codec));
  OK(gw_codec_explain("topk", text, sizeof text, NULL));
  EXPECT(strcmp(text, "") == 0);
  OK(gw_codec_explain("topk:density=7", text, sizeof text, NULL));
  EXPECT(strcmp(text, "density=7: expected a fraction from 1e-9 to 1") == 0);
  OK(gw_layout_new(2, names, ranks, dims, 3, &shaped));
  OK(gw_layout_new_flat(16, &flat));
  OK(gw_layout_elements(shaped, &elements));
  EXPECT(elements == 16);
  OK(gw_layout_fingerprint(flat, &a));
  OK(gw_layout_fingerprint(shaped, &b));
  EXPECT(a != b);
  OK(gw_layout_free(flat));
  OK(gw_layout_free(shaped));
  OK(gw_draw(1, 2, 3, 4, 5, &a));
  OK(gw_draw(1, 2, 3, 4, 6, &b));
  EXPECT(a != b);
  OK(gw_draw(1, 2, GW_ALL_RANKS, 4, 5, &b));
  EXPECT(a != b);
}

/* golden/none.bin is what `none` makes of these four numbers: FORMAT.md spells it out. */
static void golden(const char *path) {
  const float input[4] = {0.5f, -3.0f, 0.0f, 1.0f};
  uint8_t there[GW_FRAME_BOUND(4)], made[GW_FRAME_BOUND(4)];
  size_t n;
  uint64_t length;
  gw_layout *layout;
  gw_codec *codec;
  gw_encoder *encoder;
  FILE *file = fopen(path, "rb");
  EXPECT(file != NULL);
  n = fread(there, 1, sizeof there, file);
  fclose(file);
  OK(gw_frame_length(there, n, &length));
  EXPECT(length == n);
  OK(gw_layout_new_flat(4, &layout));
  setup("none", layout, &codec, &encoder, NULL);
  OK(gw_encode(encoder, 0, input, 4, NULL, made, sizeof made, &bytes));
  EXPECT(bytes == n && memcmp(there, made, n) == 0);
  gw_encoder_free(encoder), gw_codec_free(codec), gw_layout_free(layout);
}

int main(int argc, char **argv) {
  gw_layout *layout;
  if (argc != 2) return 2;
  for (int j = 0; j < N; j++) values[j] = (float)((j * 7919) % 1009 - 500) / 64;
  OK(gw_layout_new_flat(N, &layout));
  names_and_numbers();
  error_feedback(layout);
  packets(layout);
  densities(layout);
  constructors(layout);
  formats(layout);
  OK(gw_layout_free(layout));
  golden(argv[1]);
  return 0;
}
