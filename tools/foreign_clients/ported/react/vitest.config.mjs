import react from "@vitejs/plugin-react";
import { playwright } from "@vitest/browser-playwright";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [react()],
  test: {
    globals: true,
    retry: 1,
    globalSetup: ["./src/tests/mock-server.ts"],
    include: ["src/**/*.test.tsx"],
    browser: {
      enabled: true,
      headless: true,
      screenshotFailures: false,
      provider: playwright({
        launchOptions: {
          executablePath: process.env.CHROMIUM,
          args: process.env.CHROMIUM_FLAGS.split(" "),
        },
      }),
      instances: [{ browser: "chromium" }],
    },
  },
});
