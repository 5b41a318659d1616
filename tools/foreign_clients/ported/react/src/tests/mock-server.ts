// In the place of the suite's own server: the one that runs already.
export async function setup({ provide }: any) {
  provide("protocolV2ServerUrl", process.env.LANGGRAPH_INTEGRATION_URL);
}
