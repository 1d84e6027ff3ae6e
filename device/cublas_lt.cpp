#include "device/cublas_lt.hpp"

#include <dlfcn.h>

#include <string>

namespace kvhive {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32}
                                        << 20;  // NVIDIA's recommendation for Hopper

cudaDataType_t type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return CUDA_R_16BF;
    case Dtype::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

tl::unexpected<Error> refused(const char* call, cublasStatus_t status) {
  return failure(status == CUBLAS_STATUS_ALLOC_FAILED ? Errc::out_of_memory : Errc::os_error,
                 std::string(call) + ": status " + std::to_string(status));
}

}  // namespace

struct CublasLt::Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_desc = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

/// The plan of products of one shape. cuBLASLt's matrices are column-major, so y is [N, T] to it:
/// y^T = w x^T.
struct CublasLt::Plan {
  Plan(const Functions& of, const DeviceProductArgs& args) : functions(of) {
    const cudaDataType_t in = type_of(args.dtype);
    const auto N = static_cast<std::uint64_t>(args.N), T = static_cast<std::uint64_t>(args.T),
               K = static_cast<std::uint64_t>(args.K);
    status = functions.create_desc(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    if (args.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
      const cudaDataType_t out = type_of(args.out_dtype);  // the only type that is promised to work
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out, sizeof out);
    }
    layout(&w, in, K, N, args.K);
    layout(&x, in, K, T, args.K);
    layout(&y, type_of(args.out_dtype), N, T, args.N);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const cublasLtMatrixLayout_t one : {w, x, y})
      if (one != nullptr) functions.destroy_layout(one);
    if (desc != nullptr) functions.destroy_desc(desc);
  }

  void set(cublasLtMatmulDescAttributes_t attribute, const void* value, std::size_t bytes) {
    if (status == CUBLAS_STATUS_SUCCESS) status = functions.set_desc(desc, attribute, value, bytes);
  }
  void layout(cublasLtMatrixLayout_t* made, cudaDataType_t type, std::uint64_t rows,
              std::uint64_t columns, std::int64_t stride) {
    if (status == CUBLAS_STATUS_SUCCESS)
      status = functions.create_layout(made, type, rows, columns, stride);
  }

  /// Takes the algorithm that the library ranks first. It is asked without a bias address, so that
  /// all products of a shape get the same one.
  void choose(cublasLtHandle_t handle) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (status == CUBLAS_STATUS_SUCCESS) status = functions.create_preference(&preference);
    if (status == CUBLAS_STATUS_SUCCESS)
      status = functions.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                        &kWorkspaceBytes, sizeof kWorkspaceBytes);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = functions.heuristic(handle, desc, w, x, y, y, preference, 1, &result, &found);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm = result.algo;
    if (preference != nullptr) functions.destroy_preference(preference);
  }

  const Functions& functions;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
};

Expected<std::unique_ptr<CublasLt>> CublasLt::load() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    library = dlopen((std::string(KVHIVE_CUDA_LIBRARIES "/") + name).c_str(), RTLD_NOW);
  if (library == nullptr)
    return failure(Errc::not_found,
                   std::string("no ") + name + " (" + dlerror() +
                       "); install CUDA's libraries, or put their folder into LD_LIBRARY_PATH");
  auto functions = std::make_unique<Functions>();
  bool is_complete = true;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    is_complete = is_complete && function != nullptr;
  };
  find(functions->create, "cublasLtCreate");
  find(functions->destroy, "cublasLtDestroy");
  find(functions->matmul, "cublasLtMatmul");
  find(functions->heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(functions->create_desc, "cublasLtMatmulDescCreate");
  find(functions->destroy_desc, "cublasLtMatmulDescDestroy");
  find(functions->set_desc, "cublasLtMatmulDescSetAttribute");
  find(functions->create_layout, "cublasLtMatrixLayoutCreate");
  find(functions->destroy_layout, "cublasLtMatrixLayoutDestroy");
  find(functions->create_preference, "cublasLtMatmulPreferenceCreate");
  find(functions->destroy_preference, "cublasLtMatmulPreferenceDestroy");
  find(functions->set_preference, "cublasLtMatmulPreferenceSetAttribute");
  if (!is_complete)
    return failure(Errc::unsupported, name + " lacks a function that kvhive calls; use CUDA " +
                                          std::to_string(CUBLAS_VER_MAJOR));
  auto loaded = std::unique_ptr<CublasLt>(new CublasLt(std::move(functions)));
  const cublasStatus_t status = loaded->functions_->create(&loaded->handle_);
  if (status != CUBLAS_STATUS_SUCCESS) return refused("cublasLtCreate", status);
  return loaded;
}

CublasLt::CublasLt(std::unique_ptr<Functions> functions) : functions_(std::move(functions)) {}

CublasLt::~CublasLt() {
  for (const auto& [stream, workspace] : workspaces_) cudaFree(workspace);
  plans_.clear();
  if (handle_ != nullptr) functions_->destroy(handle_);
}

Expected<CublasLt::Plan*> CublasLt::plan_of(const DeviceProductArgs& args) {
  const Shape shape{args.T, args.N, args.K, args.dtype, args.out_dtype, args.bias != nullptr};
  auto& plan = plans_[shape];
  if (plan == nullptr) {
    auto made = std::make_unique<Plan>(*functions_, args);
    made->choose(handle_);
    if (made->status != CUBLAS_STATUS_SUCCESS) {
      plans_.erase(shape);
      return refused("cublasLtMatmulAlgoGetHeuristic", made->status);
    }
    plan = std::move(made);
  }
  return plan.get();
}

Expected<void*> CublasLt::workspace_of(cudaStream_t stream) {
  void*& workspace = workspaces_[stream];
  if (workspace == nullptr && cudaMalloc(&workspace, kWorkspaceBytes) != cudaSuccess) {
    cudaGetLastError();
    return failure(Errc::out_of_memory, "cudaMalloc of cuBLASLt's workspace");
  }
  return workspace;
}

Expected<void> CublasLt::multiply(const DeviceProductArgs& args, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  auto plan = plan_of(args);
  if (!plan) return forward_error(plan);
  auto workspace = workspace_of(stream);
  if (!workspace) return forward_error(workspace);
  if (args.bias != nullptr)
    (*plan)->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &args.bias, sizeof args.bias);
  const float one = 1, zero = 0;
  const cublasStatus_t status = functions_->matmul(
      handle_, (*plan)->desc, &one, args.w, (*plan)->w, args.x, (*plan)->x, &zero, args.y,
      (*plan)->y, args.y, (*plan)->y, &(*plan)->algorithm, *workspace, kWorkspaceBytes, stream);
  if (status != CUBLAS_STATUS_SUCCESS) return refused("cublasLtMatmul", status);
  return {};
}

}  // namespace kvhive
