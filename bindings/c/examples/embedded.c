/*
 * A node without a heap and without an operating system: it encodes gradients by top-k and by QSGD, and reads and adds
 * the frames, in memory that is laid out before it starts. It asks for its codecs by name (gw_topk_init, gw_qsgd_init),
 * so nothing of the others is linked. `board_write` is whatever the board prints with.
 */
#include <gradwire.h>

void board_write(const char *text, size_t count);

enum { N = 16384, STEPS = 2, ROOM = 4 * N };

/* Room for each object. Were it too short, its init would say so. */
static uint64_t codec_at[32], layout_at[16], encoder_at[4096], memory_at[N / 2 + 64], frame_at[N];
static float gradient[N], sum[N];
static uint8_t bytes[ROOM];

static void write_hex(uint32_t value, int digits) {
  char text[8];
  for (int i = 0; i < digits; i++) text[i] = "0123456789abcdef"[value >> (4 * (digits - 1 - i)) & 15];
  board_write(text, (size_t)digits);
}

static void write_frame(size_t count) {
  board_write("\nframe ", 7);
  for (size_t i = 0; i < count; i++) write_hex(bytes[i], 2);
  board_write("\n", 1);
}

static float float_of(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } number = {bits};
  return number.value;
}

/* A hash (FNV-1a) of the bits of `count` floats; of zeros for NULL. */
static void write_digest(const char *name, size_t length, const float *values) {
  uint32_t hash = 0x811c9dc5u;
  for (int i = 0; i < N; i++) {
    union {
      float value;
      uint32_t bits;
    } number = {values ? values[i] : 0.0f};
    hash = (hash ^ number.bits) * 0x01000193u;
  }
  board_write(name, length);
  write_hex(hash, 8);
}

/* What a model would compute: a gradient with a few large values. */
static void fill(uint32_t state) {
  for (int i = 0; i < N; i++) {
    state = state * 1664525u + 1013904223u;
    uint32_t exponent = 100, mantissa = (state * 0x9e3779b9u) >> 9;
    for (uint32_t rest = state << 1; rest < 0x80000000u; rest = rest << 1 | 1) exponent++;
    gradient[i] = float_of((state & 0x80000000u) | exponent << 23 | mantissa);
  }
}

/* The bytes of the frame of a step; of a void frame if the gradient is not finite; 0 if both fail. */
static size_t encode(gw_encoder *encoder, gw_memory *memory, uint32_t step) {
  size_t count;
  if (gw_encode(encoder, step, gradient, N, memory, bytes, ROOM, &count) == GW_OK) return count;
  return gw_encode_void(encoder, bytes, ROOM, &count) == GW_OK ? count : 0;
}

static int add(size_t count, const gw_layout *layout) {
  gw_frame *frame;
  return gw_frame_init(frame_at, sizeof frame_at, bytes, count, layout, NULL, &frame) == GW_OK &&
         gw_frame_add(frame, 0.5f, sum, N) == GW_OK;
}

static int run(const char *name, const gw_codec *codec, const gw_layout *layout, int keeps) {
  gw_encoder *encoder;
  gw_memory *memory = NULL;
  const float *residual = NULL;
  size_t count;
  if (gw_encoder_init(encoder_at, sizeof encoder_at, codec, layout, &encoder) != GW_OK ||
      gw_encoder_set_source(encoder, 1, 3) != GW_OK) {
    return 0;
  }
  if (keeps && (gw_memory_init(memory_at, sizeof memory_at, codec, layout, &memory) != GW_OK ||
                gw_memory_residual(memory, &residual, NULL) != GW_OK)) {
    return 0;
  }
  for (uint32_t step = 0; step < STEPS; step++) {
    fill(step);
    count = encode(encoder, memory, step);
    if (count == 0 || !add(count, layout)) return 0;
    board_write(name, 4);
    write_frame(count);
    write_digest("residual ", 9, residual);
    write_digest("\nsum ", 5, sum);
    board_write("\n", 1);
  }
  /* Of a gradient that is not finite, a void frame is sent, so that nobody waits. */
  gradient[N / 3] = float_of(0x7fc00000u);
  count = encode(encoder, memory, STEPS);
  write_frame(count);
  return count != 0;
}

int main(void) {
  gw_codec *codec;
  gw_layout *layout;
  if (gw_layout_init(layout_at, sizeof layout_at, N, &layout) != GW_OK) return 1;
  if (gw_topk_init(codec_at, sizeof codec_at, GW_DENSITY(0.01), &codec) != GW_OK || !run("topk", codec, layout, 1)) return 1;
  if (gw_qsgd_init(codec_at, sizeof codec_at, 4, &codec) != GW_OK || !run("qsgd", codec, layout, 0)) return 1;
  return 0;
}
